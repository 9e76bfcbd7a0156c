// Plays Google Pub/Sub: the fake that Google's own Go client brings, as a program.
//
// Arguments: the port of gRPC, and the port where /left tells how many messages nobody acknowledged.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	server := pstest.NewServerWithPort(port)
	http.HandleFunc("/left", func(answer http.ResponseWriter, _ *http.Request) {
		left := 0
		for _, message := range server.Messages() {
			if message.Acks == 0 {
				left++
			}
		}
		fmt.Fprint(answer, left)
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[2], nil))
}
