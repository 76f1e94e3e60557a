{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "millrace.name" -}}
{{- $name := printf "%s-%s" .root.Release.Name .component | replace "_" "-" }}
{{- if gt (len $name) 46 }}
{{- $name = printf "%s-%s" ($name | trunc 37 | trimSuffix "-") (sha256sum $name | trunc 8) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "millrace.image" -}}
{{- $given := .root.Values.image -}}
{{ $given.registry }}/{{ .image }}:{{ $given.tag | default .root.Chart.AppVersion }}{{ with index $given.digests .image }}@{{ . }}{{ end }}
{{- end }}

{{- define "millrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "millrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Liveness is /healthz alone: a restart does not help while a service of Google's is unavailable. */}}
{{- define "millrace.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "millrace.settings" -}}
{{- range $name, $value := .settings }}
{{- /* Helm has numbers as floats: toString would make 1.073741824e+09 of a gibibyte. */}}
- {name: {{ $name }}, value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}}
{{- end }}
{{- if .root.Values.tablesFile }}
- {name: TABLES_FILE, value: /etc/millrace/tables.toml}
{{- end }}
{{- end }}

{{- define "millrace.podMetadata" -}}
labels:
  {{- include "millrace.labels" . | nindent 2 }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: "8080"
  checksum/tables: {{ .root.Values.tablesFile | sha256sum }}
{{- end }}

{{- define "millrace.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if .root.Values.tablesFile }}
- {name: tables, configMap: {name: {{ .root.Release.Name }}-tables}}
{{- end }}
{{- end }}

{{- define "millrace.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tablesFile }}
- {name: tables, mountPath: /etc/millrace/tables.toml, subPath: tables.toml, readOnly: true}
{{- end }}
{{- end }}

{{/* The readers, each with its kind, as JSON. */}}
{{- define "millrace.readers" -}}
{{- $readers := list }}
{{- range $name, $reader := .Values.spannerReaders }}
{{- $readers = append $readers (dict "name" $name "kind" "spanner_reader" "reader" $reader) }}
{{- end }}
{{- range $name, $reader := .Values.bigtableReaders }}
{{- $readers = append $readers (dict "name" $name "kind" "bigtable_reader" "reader" $reader) }}
{{- end }}
{{- toJson $readers }}
{{- end }}

{{/* The pod of the consumer, with the name of its container: of the StatefulSet, or of the driver of the SparkApplication. */}}
{{- define "millrace.consumerPod" -}}
{{- $scope := dict "root" .root "component" "cdc-consumer" }}
{{- $name := include "millrace.name" $scope }}
{{- $values := .root.Values.consumer }}
{{- $application := eq $values.kind "SparkApplication" }}
{{- $cluster := gt (int $values.executors) 0 }}
metadata:
  {{- include "millrace.podMetadata" $scope | nindent 2 }}
    {{- if and $cluster (not $application) }}
    checksum/spark: {{ include (print .root.Template.BasePath "/executors.yaml") .root | sha256sum }}
    {{- end }}
spec:
  serviceAccountName: cdc-consumer
  automountServiceAccountToken: {{ $cluster }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: 30
  securityContext:
    {{- include "millrace.podSecurity" .root | nindent 4 }}
  containers:
    - name: {{ .container }}
      image: {{ include "millrace.image" (dict "root" .root "image" "cdc_consumer") }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      env:
        {{- include "millrace.settings" (dict "root" .root "settings" $values.settings) | nindent 8 }}
        - {name: CHECKPOINT_LOCATION, value: /var/lib/millrace/checkpoint}
        {{- if $cluster }}
        - {name: SPARK_MASTER, value: "k8s://https://kubernetes.default.svc:443"}
        - {name: TASKS_PORT, value: "7079"}
        {{- if not $application }}
        - {name: SPARK_CONF_DIR, value: /etc/spark}
        - name: SPARK_LOCAL_HOSTNAME
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        {{- end }}
        {{- else if and $application (not (hasKey $values.settings "SPARK_MASTER")) }}
        - {name: SPARK_MASTER, value: "local[2]"}
        {{- end }}
      ports:
        - {name: health, containerPort: 8080}
      {{- include "millrace.probes" .root | nindent 6 }}
      terminationMessagePolicy: FallbackToLogsOnError
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- include "millrace.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        {{- include "millrace.mounts" $scope | nindent 8 }}
        - {name: checkpoint, mountPath: /var/lib/millrace}
        {{- include "millrace.maskMount" .root | nindent 8 }}
        {{- if and $cluster (not $application) }}
        - {name: spark, mountPath: /etc/spark, readOnly: true}
        {{- end }}
  volumes:
    {{- include "millrace.volumes" $scope | nindent 4 }}
    {{- include "millrace.maskVolume" .root | nindent 4 }}
    {{- if $application }}
    - {name: checkpoint, persistentVolumeClaim: {claimName: {{ $name }}}}
    {{- else if $cluster }}
    - {name: spark, configMap: {name: {{ $name }}-spark}}
    {{- end }}
{{- end }}

{{- define "millrace.executorPod" -}}
metadata:
  labels:
    {{- include "millrace.labels" (dict "root" . "component" "executor") | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- include "millrace.podSecurity" . | nindent 4 }}
  containers:
    - name: spark-kubernetes-executor
      terminationMessagePolicy: FallbackToLogsOnError
      securityContext:
        {{- include "millrace.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- include "millrace.maskMount" . | nindent 8 }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- include "millrace.maskVolume" . | nindent 4 }}
{{- end }}

{{- define "millrace.checkpointClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.consumer.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .Values.consumer.checkpointStorage }}}
{{- end }}

{{/* An amount of memory, of Kubernetes or of Java, as whole MiB: the name of the value, and the value. */}}
{{- define "millrace.mebibytes" -}}
{{- $amount := toString (index . 1) }}
{{- $unit := regexReplaceAll "^[0-9]+" $amount "" }}
{{- $factor := get (dict "m" 1 "Mi" 1 "g" 1024 "Gi" 1024 "t" 1048576 "Ti" 1048576) $unit }}
{{- if not $factor }}
{{- fail (printf "%s is %s: with consumer.kind=SparkApplication it has to be a whole number of Mi, Gi or Ti (m, g or t of Java)" (index . 0) $amount) }}
{{- end }}
{{- mul (trimSuffix $unit $amount) $factor }}
{{- end }}

{{/* The key of masks by sha256, which the consumer reads and its executors too. */}}
{{- define "millrace.maskMount" -}}
{{- if .Values.consumer.maskKeySecret }}
- {name: mask, mountPath: /etc/millrace/mask, readOnly: true}
{{- end }}
{{- end }}

{{- define "millrace.maskVolume" -}}
{{- if .Values.consumer.maskKeySecret }}
- {name: mask, secret: {secretName: {{ .Values.consumer.maskKeySecret }}, defaultMode: 0440}}
{{- end }}
{{- end }}
