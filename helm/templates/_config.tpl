{{- /* The configuration file: the values' `config`, and what follows from other values. */ -}}
{{- define "tailerd.config" -}}
{{- $full := include "tailerd.fullname" . -}}
{{- $hosts := list $full (printf "%s.%s" $full .Release.Namespace) (printf "%s.%s.svc" $full .Release.Namespace) (printf "%s.%s.svc.cluster.local" $full .Release.Namespace) -}}
{{- $http := dict "listen" (printf "%s:%v" .Values.http.address (int .Values.http.port)) "read" .Values.http.read "hosts" (concat $hosts .Values.http.hosts) -}}
{{- if .Values.http.tls.secret -}}
{{- $tls := dict "cert" "/etc/tailerd-tls/tls.crt" "key" "/etc/tailerd-tls/tls.key" -}}
{{- if .Values.http.tls.clientCa }}{{ $_ := set $tls "client_ca" "/etc/tailerd-tls/ca.crt" }}{{ end -}}
{{- $_ := set $http "tls" $tls -}}
{{- end -}}
{{- $config := deepCopy .Values.config -}}
{{- if not (or $config.tables $config.discover) -}}
{{- $demo := dict "path" "/var/lib/tailerd/demo/orders" "create" "demo" "from" "snapshot" "sink" (dict "kind" "console") -}}
{{- $_ := set $config "tables" (dict "orders" $demo) -}}
{{- end -}}
{{- $_ := set $config "state" (.Values.state.url | default "/var/lib/tailerd/state") -}}
{{- $_ := set $config "http" $http -}}
{{- if .Values.spark.kubernetes.enabled -}}
{{- $spark := $config.spark | default dict -}}
{{- $conf := merge (deepCopy ($spark.conf | default dict)) (include "tailerd.sparkConf" . | fromYaml) -}}
{{- $_ := set $config "spark" (dict "master" ($spark.master | default "k8s://https://kubernetes.default.svc") "conf" $conf) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}
