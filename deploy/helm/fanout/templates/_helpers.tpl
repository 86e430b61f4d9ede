{{/* Names, labels, and the common parts of the pods of all roles. */}}
{{/* At most 40 characters: a Service has 63, and a driver's name takes up to 22 of them. A longer one ends with its digest. */}}
{{- define "fanout.name" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := printf "%s-%s" .Release.Name $chart -}}
{{- if .Values.fullnameOverride }}{{ $name = .Values.fullnameOverride }}
{{- else if contains $chart .Release.Name }}{{ $name = .Release.Name }}{{ end -}}
{{- if gt (len $name) 40 }}{{ printf "%s-%s" (trunc 34 $name | trimSuffix "-") (trunc 5 (sha256sum $name)) }}
{{- else }}{{ $name }}{{ end -}}
{{- end }}

{{- define "fanout.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "fanout.podLabels" . }}
{{- end }}

{{/* Labels by which a Deployment, a Service or a policy selects its pods. They must not change between releases. */}}
{{- define "fanout.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "fanout.podLabels" -}}
{{ include "fanout.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fanout.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* "yes" if lane realtime shares a driver with other lanes; else empty. Without its pattern the lane does not run. */}}
{{- define "fanout.sharesWithRealtime" -}}
{{- if and (dig "source" "realtime_pattern" "" .root.Values.config) (has "realtime" .lanes) (gt (len .lanes) 1) }}yes{{ end -}}
{{- end }}

{{/*
Settings of the area `spark` that run executors in their own pods, for one driver.
Each partition of lane realtime occupies a core, so other lanes in its driver get half of the cores.
Spark gives an executor 30 s to end, whatever the template of its pod says, unless terminationGracePeriodSeconds is set.
Spark ends the driver after more than 3 failures, or more than 2 for each executor, in the job's whole life. Over months,
evictions alone reach that. Only failures of the last hour count here, and ten for each executor are permitted: more mean that
executors cannot run at all.
*/}}
{{- define "fanout.executorSettings" -}}
{{- $executors := .executors -}}
{{- $atFirst := $executors.count | default (dig "autoscaling" "min" 0 $executors) -}}
{{- $most := dig "autoscaling" "max" $atFirst $executors -}}
{{- $tasks := mul $atFirst $executors.cores -}}
{{- if include "fanout.sharesWithRealtime" . }}{{ $tasks = div $tasks 2 }}{{ end -}}
{{- $conf := dict
  "spark.kubernetes.namespace" .root.Release.Namespace
  "spark.kubernetes.container.image" (include "fanout.image" .root)
  "spark.kubernetes.container.image.pullPolicy" .root.Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "${env:POD_NAME}"
  "spark.kubernetes.executor.podTemplateFile" "/etc/fanout/executor.yaml"
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.executor.request.cores" (toString $executors.requestCores)
  "spark.kubernetes.executor.terminationGracePeriodSeconds" "60s"
  "spark.executor.failuresValidityInterval" "1h"
  "spark.executor.maxNumFailures" (mul 10 $most | toString)
  "spark.executor.instances" (toString $atFirst)
  "spark.executor.cores" (toString $executors.cores)
  "spark.executor.memory" $executors.heap
  "spark.executor.memoryOverhead" $executors.besidesHeap
  "spark.driver.port" "7078"
  "spark.driver.blockManager.port" "7079"
  "spark.blockManager.port" "7079"
  "spark.decommission.enabled" "true"
  "spark.kubernetes.decommission.script" "/opt/venv/bin/drain-executor"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
-}}
{{- $own := dict "spark" (dict "master" (printf "k8s://%s" .root.Values.apiServer) "parallelism" $tasks "conf" $conf) -}}
{{- with $executors.autoscaling }}{{ $_ := set $own "scaling" (dict "min_executors" .min "max_executors" .max) }}{{ end -}}
{{ toJson $own }}
{{- end }}

{{/* Settings of the area `spark` for one driver only: its executors, and its checkpoint on an object store. Empty: there are none. */}}
{{- define "fanout.driverSettings" -}}
{{- $own := dict -}}
{{- with .driver.executors }}{{ $own = include "fanout.executorSettings" (dict "root" $.root "executors" . "lanes" $.driver.lanes) | fromJson }}{{ end -}}
{{- with .driver.checkpoint.url }}
{{- $lease := printf "%s-%s" (include "fanout.name" $.root) $.name -}}
{{- $own = mustMergeOverwrite $own (dict "spark" (dict "checkpoint" . "checkpoint_lease" $lease)) -}}
{{- end -}}
{{ toJson $own }}
{{- end }}

{{/* The settings as TOML, for one driver or for all roles. Numbers, texts and lists are alike in JSON and TOML; a table of an area comes after its fields. */}}
{{- define "fanout.settings" -}}
{{- $own := dict "logs" (dict "format" "json") "metrics" (dict "host" .root.Values.listenAddress "port" 9108) "api" (dict "host" .root.Values.listenAddress "port" 8800 "publishing" .root.Values.serve.publishing) "spark" (dict "checkpoint" "/var/lib/fanout/checkpoint") -}}
{{- if .root.Values.development.enabled }}{{ $_ := set $own "kafka" (dict "bootstrap_servers" (printf "%s-kafka:9092" (include "fanout.name" .root))) }}{{ end -}}
{{- $all := mustMergeOverwrite $own (.driver | default dict) (deepCopy .root.Values.config) -}}
{{- range $area := keys $all | sortAlpha }}
[{{ $area }}]
{{- $fields := get $all $area }}
{{- range $field := keys $fields | sortAlpha }}
{{- $value := get $fields $field }}
{{- if not (kindIs "map" $value) }}
{{ $field }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $field := keys $fields | sortAlpha }}
{{- $value := get $fields $field }}
{{- if kindIs "map" $value }}

[{{ $area }}.{{ $field }}]
{{- range $name := keys $value | sortAlpha }}
{{ toJson $name }} = {{ toJson (get $value $name) }}
{{- end }}
{{- end }}
{{- end }}
{{ end }}
{{- end }}

{{/* Name of a required Secret. For development the chart creates it. */}}
{{- define "fanout.secretName" -}}
{{- $secret := get .root.Values.secrets .secret -}}
{{- if and (not $secret.name) .root.Values.development.enabled }}{{ include "fanout.name" .root }}-development
{{- else }}{{ required (printf "secrets.%s.name is required: the name of a Secret that exists, with the key %q" .secret $secret.key) $secret.name }}{{ end -}}
{{- end }}

{{/* Environment variables and volumes for files of secrets. `of` lists the secrets by the names of their values. */}}
{{- define "fanout.variable" -}}
{{- get (dict "database" "FANOUT_DATABASE_URL_FILE" "apiDatabase" "FANOUT_API_DATABASE_URL_FILE" "keyRing" "FANOUT_KEYS_RING_FILE" "kafkaPassword" "FANOUT_KAFKA_SASL_PASSWORD_FILE" "apiKafkaPassword" "FANOUT_KAFKA_SASL_PASSWORD_FILE" "schemaRegistryPassword" "FANOUT_SCHEMA_REGISTRY_PASSWORD_FILE") . -}}
{{- end }}

{{- define "fanout.environment" -}}
{{- range $secret := .of }}
- name: {{ include "fanout.variable" $secret }}
  value: /run/secrets/fanout/{{ $secret }}
{{- end }}
{{- end }}

{{- define "fanout.secretVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $secret := .of }}
      - secret:
          name: {{ include "fanout.secretName" (dict "root" $.root "secret" $secret) }}
          items: [{key: {{ get (get $.root.Values.secrets $secret) "key" | quote }}, path: {{ $secret }}}]
      {{- end }}
{{- end }}

{{/* Files of `certificates`, in all pods of the platform. Empty: there are none. */}}
{{- define "fanout.certificateMount" -}}
{{- if or .Values.certificates.configMap .Values.certificates.secret -}}
- {name: certificates, mountPath: /etc/certificates, readOnly: true}
{{- end -}}
{{- end }}

{{- define "fanout.certificateVolume" -}}
{{- if or .Values.certificates.configMap .Values.certificates.secret -}}
- name: certificates
  projected:
    defaultMode: 0440
    sources:
      {{- with .Values.certificates.configMap }}
      - configMap: {name: {{ . }}}
      {{- end }}
      {{- with .Values.certificates.secret }}
      - secret: {name: {{ . }}}
      {{- end }}
{{- end -}}
{{- end }}

{{/* Refuse a setting that names a file which no pod has. The image has the authorities of the system. */}}
{{- define "fanout.requireFiles" -}}
{{- range $area, $fields := .Values.config }}
{{- range $field, $value := $fields }}
{{- if and (hasSuffix "_file" $field) $value (not (hasPrefix "/etc/ssl/certs/" $value)) }}
{{- if not (and (include "fanout.certificateMount" $) (hasPrefix "/etc/certificates/" $value)) }}
{{- fail (printf "config.%s.%s: no pod has the file %s. Put it into a ConfigMap or a Secret, name that in certificates.configMap or certificates.secret, and set /etc/certificates/KEY" $area $field $value) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Lanes of all drivers that report metrics, as JSON. Without its pattern lane realtime does not run. With it lane direct leaves out the topics of lane realtime, so some release must run that lane too. */}}
{{- define "fanout.lanes" -}}
{{- $isRealtime := dig "source" "realtime_pattern" "" .Values.config -}}
{{- $lanes := list -}}
{{- range .Values.drivers }}{{ $lanes = concat $lanes .lanes }}{{ end -}}
{{- if not $isRealtime }}{{ $lanes = without $lanes "realtime" }}
{{- else if has "direct" $lanes }}{{ $lanes = append $lanes "realtime" | uniq }}{{ end -}}
{{ toJson $lanes }}
{{- end }}

{{- define "fanout.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fanout.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "fanout.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Annotations of a pod. A change of the settings or of secretsRevision restarts it. */}}
{{- define "fanout.annotations" -}}
checksum/settings: {{ include "fanout.settings" (dict "root" .) | sha256sum }}
{{- with .Values.secretsRevision }}
fanout/secrets-revision: {{ . | quote }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Spread the pods of one role over nodes and zones. */}}
{{- define "fanout.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "fanout.selector" $.root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
  {{- end }}
{{- end }}

{{/* Seconds until Kubernetes kills a stopping driver: the time that its settings give to attempts in flight, plus 65 for the micro-batch and Spark. */}}
{{- define "fanout.grace" -}}
{{- $delivery := .Values.config.delivery | default dict -}}
{{- $asked := addf (dig "stop_within_s" 20 $delivery) (dig "lane_deadline_s" 3 $delivery) (dig "attempt_timeout_s" 2 $delivery) -}}
{{- add 65 (ceil $asked | int) -}}
{{- end }}

{{/* Secrets that a role reads. */}}
{{- define "fanout.common" -}}
database keyRing{{ if .Values.secrets.kafkaPassword.name }} kafkaPassword{{ end }}
{{- end }}

{{/* Secrets of a role that reads events: the drivers and the archive, for replays. */}}
{{- define "fanout.reader" -}}
{{ include "fanout.common" . }}{{ if .Values.secrets.schemaRegistryPassword.name }} schemaRegistryPassword{{ end }}
{{- end }}

{{/* Checkpoint of a driver and its executors: a volume, or credentials of an object store. */}}
{{- define "fanout.storeEnvironment" -}}
- {name: AWS_SHARED_CREDENTIALS_FILE, value: /run/secrets/store/credentials}
{{- end }}

{{- define "fanout.checkpointMount" -}}
{{- if not .url -}}
- {name: checkpoint, mountPath: /var/lib/fanout}
{{- else if .credentials -}}
- {name: store, mountPath: /run/secrets/store, readOnly: true}
{{- end -}}
{{- end }}

{{- define "fanout.checkpointVolume" -}}
{{- if not .checkpoint.url -}}
- name: checkpoint
  persistentVolumeClaim: {claimName: {{ .claim }}}
{{- else if .checkpoint.credentials -}}
- name: store
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .checkpoint.credentials.name }}
          items: [{key: {{ .checkpoint.credentials.key | quote }}, path: credentials}]
{{- end -}}
{{- end }}
