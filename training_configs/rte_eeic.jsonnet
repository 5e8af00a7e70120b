// EEIC on RTE: exits trained to differ, and votes.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').eeic
