{{- /* Executors of Spark as pods: properties of the session, and the pod they are made from. */ -}}
{{- define "tailerd.sparkConf" -}}
{{- $account := "/var/run/secrets/kubernetes.io/serviceaccount" -}}
spark.kubernetes.namespace: {{ .Release.Namespace }}
spark.kubernetes.container.image: {{ include "tailerd.image" . | quote }}
spark.kubernetes.container.image.pullPolicy: {{ .Values.image.pullPolicy }}
spark.kubernetes.authenticate.caCertFile: {{ $account }}/ca.crt
spark.kubernetes.authenticate.oauthTokenFile: {{ $account }}/token
# Executors end with the pod that started them.
spark.kubernetes.driver.pod.name: ${POD_NAME}
spark.kubernetes.executor.podTemplateFile: /etc/tailerd/executor.yaml
spark.kubernetes.executor.podTemplateContainerName: executor
spark.driver.host: ${POD_IP}
spark.driver.bindAddress: ${POD_IP}
{{- $ports := include "tailerd.driverPorts" . | fromYamlArray }}
spark.driver.port: {{ first $ports | quote }}
spark.driver.blockManager.port: {{ last $ports | quote }}
spark.executor.instances: "1"
# Python and Arrow need memory outside of Java.
spark.executor.memoryOverheadFactor: "0.4"
{{- end -}}

{{- /* Ports of the driver that executors connect to. */ -}}
{{- define "tailerd.driverPorts" -}}
{{- $conf := dig "spark" "conf" dict .Values.config -}}
- {{ get $conf "spark.driver.port" | default 7078 }}
- {{ get $conf "spark.driver.blockManager.port" | default 7079 }}
{{- end -}}

{{- define "tailerd.executorLabels" -}}
app.kubernetes.io/name: {{ include "tailerd.name" . }}-executor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tailerd.executor" -}}
apiVersion: v1
kind: Pod
metadata:
  labels: {{- include "tailerd.executorLabels" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "tailerd.serviceAccount" . }}
  automountServiceAccountToken: {{ .Values.serviceAccount.automountToken }}
  enableServiceLinks: false
  {{- include "tailerd.pullSecrets" . | nindent 2 }}
  {{- include "tailerd.podSecurity" . | nindent 2 }}
  containers:
    - name: executor
      {{- include "tailerd.containerSecurity" . | nindent 6 }}
      env: [{name: HOME, value: /tmp}]
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with .Values.volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with .Values.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- range $key := list "nodeSelector" "tolerations" }}
  {{- with get $.Values $key }}
  {{ $key }}: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end -}}
