// LeeBERT-style training on RTE: exits teach each other with learned weights; patience.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').leebert
