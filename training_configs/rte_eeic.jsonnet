// EEIC on RTE: exits trained to differ, and votes.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').eeic
