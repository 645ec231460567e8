{{/* The release's name, which has the chart's in it. */}}
{{- define "fluence.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fluence.scheduler" -}}
{{- printf "%s-scheduler" (include "fluence.fullname" .) -}}
{{- end -}}

{{- define "fluence.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "fluence.scheduler" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: say serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "fluence.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: scheduler
{{- end -}}

{{- define "fluence.labels" -}}
{{ include "fluence.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Values of earlier charts: what they mean here, as {replicas, image, pullPolicy, settings, notes}. */}}
{{- define "fluence.aliases" -}}
{{- $old := default dict .Values.scheduler -}}
{{- $found := dict "settings" dict -}}
{{- $notes := list -}}
{{- if $old.name -}}
{{- $_ := set $found.settings "scheduler-name" $old.name -}}
{{- $notes = append $notes (printf "scheduler.name is settings.scheduler-name: %s" $old.name) -}}
{{- end -}}
{{- $policy := list "scheduler.policy" $old.policy -}}
{{- with .Values.sidecar -}}
{{- if .policy }}{{ $policy = list "sidecar.policy" .policy }}{{ end -}}
{{- end -}}
{{- with .Values.controllerManager -}}
{{- $manager := default dict .manager -}}
{{- range (default list $manager.args) -}}
{{- if hasPrefix "--policy=" . -}}
{{- $policy = list "controllerManager.manager.args --policy" (trimPrefix "--policy=" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if last $policy -}}
{{- $_ := set $found.settings "match-policy" (last $policy) -}}
{{- $notes = append $notes (printf "%s is settings.match-policy: %s" (first $policy) (last $policy)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $old.replicaCount) -}}
{{- $_ := set $found "replicas" $old.replicaCount -}}
{{- $notes = append $notes (printf "scheduler.replicaCount is replicas: %v" $old.replicaCount) -}}
{{- end -}}
{{- if not (kindIs "invalid" $old.leaderElect) -}}
{{- $_ := set $found.settings "lease" $old.leaderElect -}}
{{- $notes = append $notes (printf "scheduler.leaderElect is settings.lease: %v" $old.leaderElect) -}}
{{- end -}}
{{- if $old.pullPolicy -}}
{{- if contains "/" .Values.image.repository -}}
{{- $_ := set $found "pullPolicy" $old.pullPolicy -}}
{{- $notes = append $notes (printf "scheduler.pullPolicy is image.pullPolicy: %s" $old.pullPolicy) -}}
{{- else -}}
{{- $notes = append $notes (printf "scheduler.pullPolicy %s is not used: the image %s is in no registry; see image.repository" $old.pullPolicy .Values.image.repository) -}}
{{- end -}}
{{- end -}}
{{- if $old.loggingLevel -}}
{{- $level := ternary "debug" "info" (ge (int $old.loggingLevel) 4) -}}
{{- $_ := set $found.settings "log-level" $level -}}
{{- $notes = append $notes (printf "scheduler.loggingLevel is settings.log-level: %s" $level) -}}
{{- end -}}
{{- if $old.image -}}
{{- $notes = append $notes (printf "scheduler.image %s is another program and is not used: see image.repository" $old.image) -}}
{{- end -}}
{{- $sidecar := default dict .Values.sidecar -}}
{{- $external := or $old.enableExternalService $sidecar.enableExternalService -}}
{{- if $external -}}
{{- $_ := set $found "externalService" true -}}
{{- $notes = append $notes "enableExternalService is matchService.enabled and matchService.nodePort" -}}
{{- $port := default $sidecar.port $old.port -}}
{{- if $port -}}
{{- $_ := set $found "servicePort" (int $port) -}}
{{- $notes = append $notes (printf "port is matchService.port: %v" $port) -}}
{{- end -}}
{{- end -}}
{{- $unused := list -}}
{{- $ignored := list "sidecarimage" "sidecarPullPolicy" "ports" "type" -}}
{{- if not $external }}{{ $ignored = append $ignored "port" }}{{ end -}}
{{- range $ignored -}}
{{- if hasKey $old . }}{{ $unused = append $unused (printf "scheduler.%s" .) }}{{ end -}}
{{- end -}}
{{- range $key := list "controller" "controllerManager" "database" "enableCertManager" "kubernetesClusterDomain" "metricsService" "pluginConfig" "plugins" "postgres" "sidecar" "webhookService" -}}
{{- if hasKey $.Values $key }}{{ $unused = append $unused $key }}{{ end -}}
{{- end -}}
{{- if $unused -}}
{{- $notes = append $notes (printf "not needed here: %s" (join ", " $unused)) -}}
{{- end -}}
{{- $_ := set $found "notes" $notes -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The match service as it is asked for, here or by a value of an earlier chart. */}}
{{- define "fluence.matchService" -}}
{{- $found := deepCopy .Values.matchService -}}
{{- $aliases := include "fluence.aliases" . | fromYaml -}}
{{- if $aliases.externalService -}}
{{- $_ := set $found "enabled" true -}}
{{- $_ := set $found "nodePort" true -}}
{{- with $aliases.servicePort }}{{ $_ := set $found "port" . }}{{ end -}}
{{- end -}}
{{- if and $found.clientCertificates (not $found.tlsSecret) -}}
{{- fail "matchService.clientCertificates needs matchService.tlsSecret: clients can only show a certificate over TLS" -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* The settings as the scheduler's file has them. */}}
{{- define "fluence.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if not (index $settings "lease-namespace") -}}
{{- $_ := set $settings "lease-namespace" .Release.Namespace -}}
{{- end -}}
{{- if and .Values.admission.users (not (index $settings "users-policy")) -}}
{{- $_ := set $settings "users-policy" (printf "%s-users" (include "fluence.fullname" .)) -}}
{{- end -}}
{{- $aliases := include "fluence.aliases" . | fromYaml -}}
{{- range $key, $value := $aliases.settings -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- range $key, $value := deepCopy $settings -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $settings $key }}{{ end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "fluence.replicas" -}}
{{- $aliases := include "fluence.aliases" . | fromYaml -}}
{{- $settings := include "fluence.settings" . | fromYaml -}}
{{- $replicas := int (ternary $aliases.replicas .Values.replicas (hasKey $aliases "replicas")) -}}
{{- if and (gt $replicas 1) (eq (toString $settings.lease) "false") -}}
{{- fail (printf "settings.lease is false and replicas is %d: two schedulers would place pods twice; set replicas to 1, or leave the lease" $replicas) -}}
{{- end -}}
{{- if and (gt $replicas 1) .Values.history.volume.persistent (include "fluence.keepsFile" .) -}}
{{- fail (printf "history.volume.persistent is true and replicas is %d: SQLite's file is for one; set replicas to 1, or history.existingSecret for PostgreSQL" $replicas) -}}
{{- end -}}
{{- $replicas -}}
{{- end -}}

{{- define "fluence.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The port of an address HOST:PORT; empty if there is none. */}}
{{- define "fluence.port" -}}
{{- if . }}{{ splitList ":" . | last }}{{ end -}}
{{- end -}}

{{/* Whether a queue ends what runs past its limit; `enforce-limits` is a map, or text as in a flag. */}}
{{- define "fluence.endsAtLimits" -}}
{{- $given := index (include "fluence.settings" . | fromYaml) "enforce-limits" -}}
{{- if kindIs "map" $given -}}
{{- if has "end" (values $given) }}true{{ end -}}
{{- else if regexMatch "=\\s*end\\s*(,|$)" (toString $given) }}true{{ end -}}
{{- end -}}

{{/* Whether the metrics can be reached from outside the pod; then callers are asked who they are. */}}
{{- define "fluence.metrics" -}}
{{- $address := index (include "fluence.settings" . | fromYaml) "metrics-address" -}}
{{- if and $address (not (regexMatch "^(127\\.|localhost:|\\[::1\\]:)" $address)) }}true{{ end -}}
{{- end -}}

{{/* Whether the view API can be reached from outside the pod. */}}
{{- define "fluence.view" -}}
{{- $address := index (include "fluence.settings" . | fromYaml) "view-address" -}}
{{- if and $address (not (regexMatch "^(127\\.|localhost:|\\[::1\\]:)" $address)) }}true{{ end -}}
{{- end -}}

{{/* Who applies the rules of admission: policy, webhook or off. */}}
{{- define "fluence.admission" -}}
{{- $mode := .Values.admission.mode -}}
{{- $knows := semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}
{{- if and (eq $mode "policy") (not $knows) -}}
{{- fail (printf "admission.mode is policy, which Kubernetes %s does not have: set it to webhook, auto or off" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if eq $mode "off" -}}
{{- if .Values.admission.users -}}
{{- fail "admission.users is true and admission.mode is off: nothing would write who created an object; set the mode to auto, policy or webhook" -}}
{{- end -}}
{{- if .Values.admission.queueAccess -}}
{{- fail "admission.queueAccess is true and admission.mode is off: no right would be checked; set the mode to auto, policy or webhook" -}}
{{- end -}}
{{- end -}}
{{- if eq $mode "auto" }}{{ ternary "policy" "webhook" $knows }}{{ else }}{{ $mode }}{{ end -}}
{{- end -}}

{{/* Namespaces in which rules hold at all. */}}
{{- define "fluence.admission.namespaces" -}}
{{- $except := concat (list "kube-system") .Values.admission.exceptNamespaces -}}
{{- if eq .Values.admission.doors "cluster" }}{{ $except = append $except .Release.Namespace }}{{ end -}}
- {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ uniq $except | toJson }}}
{{- with .Values.admission.namespaceSelector }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The same as a selector. */}}
{{- define "fluence.admission.all" -}}
matchExpressions:
{{- include "fluence.admission.namespaces" . | nindent 2 }}
{{- end -}}

{{/* Those in which no work is held back. */}}
{{- define "fluence.admission.open" -}}
matchExpressions:
{{- include "fluence.admission.namespaces" . | nindent 2 }}
{{- if eq .Values.admission.doors "namespaces" }}
  - {key: fluence.flux-framework.org/doors, operator: NotIn, values: [enabled]}
{{- else if eq .Values.admission.doors "cluster" }}
  - {key: fluence.flux-framework.org/doors, operator: In, values: [disabled]}
{{- end }}
{{- end -}}

{{/* Those in which it is. */}}
{{- define "fluence.admission.held" -}}
matchExpressions:
{{- include "fluence.admission.namespaces" . | nindent 2 }}
{{- if eq .Values.admission.doors "cluster" }}
  - {key: fluence.flux-framework.org/doors, operator: NotIn, values: [disabled]}
{{- else }}
  - {key: fluence.flux-framework.org/doors, operator: In, values: [enabled]}
{{- end }}
{{- end -}}

{{- define "fluence.webhook.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: webhook
{{- end -}}

{{- define "fluence.webhook.labels" -}}
{{ include "fluence.webhook.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Whether the history is a file in the pod, in the directory that is mounted for it. */}}
{{- define "fluence.keepsFile" -}}
{{- $settings := include "fluence.settings" . | fromYaml -}}
{{- $where := toString (default "" (index $settings "database-url")) -}}
{{- if and (ne (toString $settings.history) "false") (not .Values.history.existingSecret) (contains "/var/lib/fluence/" $where) }}true{{ end -}}
{{- end -}}
