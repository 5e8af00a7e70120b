// EEIC on RTE: exits trained to differ, and votes.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').eeic
