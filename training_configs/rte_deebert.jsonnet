// DeeBERT on RTE: two stages, and entropy.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').deebert
