{{- define "tailerd.pod" -}}
serviceAccountName: {{ include "tailerd.serviceAccount" . }}
automountServiceAccountToken: {{ or .Values.serviceAccount.automountToken .Values.spark.kubernetes.enabled }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- include "tailerd.pullSecrets" . }}
{{ include "tailerd.podSecurity" . }}
containers:
  - name: tailerd
    image: {{ include "tailerd.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [run, --config, /etc/tailerd/tailerd.yaml, --log-format, json]
    workingDir: /var/lib/tailerd
    {{- include "tailerd.containerSecurity" . | nindent 4 }}
    ports:
      - {name: http, containerPort: {{ .Values.http.port }}, protocol: TCP}
    {{- include "tailerd.env" . | nindent 4 }}
    {{- include "tailerd.probes" . | nindent 4 }}
    resources: {{- toYaml .Values.resources | nindent 6 }}
    volumeMounts:
      - {name: config, mountPath: /etc/tailerd, readOnly: true}
      - {name: state, mountPath: /var/lib/tailerd}
      - {name: tmp, mountPath: /tmp}
      {{- if .Values.http.tls.secret }}
      - {name: tls, mountPath: /etc/tailerd-tls, readOnly: true}
      {{- end }}
      {{- with .Values.volumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - name: config
    configMap: {name: {{ include "tailerd.fullname" . }}}
  - name: tmp
    emptyDir: {}
  {{- if or .Values.state.ephemeral .Values.state.url }}
  - name: state
    emptyDir: {}
  {{- else if .Values.state.existingClaim }}
  - name: state
    persistentVolumeClaim: {claimName: {{ .Values.state.existingClaim }}}
  {{- end }}
  {{- with .Values.http.tls.secret }}
  - name: tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with .Values.volumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with get $.Values $key }}
{{ $key }}: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tailerd.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "tailerd.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tailerd.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tailerd.env" -}}
env:
  - {name: HOME, value: /tmp}
  {{- if .Values.spark.kubernetes.enabled }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  {{- end }}
  {{- with .Values.http.token }}{{ if .secret }}
  - name: TAILERD__HTTP__TOKEN
    valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .key | quote }}}}
  {{- end }}{{ end }}
  {{- range $name, $from := .Values.secretEnv }}
  - name: {{ $name }}
    valueFrom: {secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key | quote }}}}
  {{- end }}
  {{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
{{- end -}}

{{- define "tailerd.probes" -}}
{{- $scheme := include "tailerd.scheme" . | upper -}}
# Alive: the loop that drives every pipeline answers.
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
# Ready: every pipeline has looked at its log, and none has failed.
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  {{- toYaml .Values.probes.startup | nindent 2 }}
{{- end -}}
