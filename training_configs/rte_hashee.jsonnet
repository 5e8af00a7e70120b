// HashEE on RTE: every token leaves at a depth of its own.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').hashee
