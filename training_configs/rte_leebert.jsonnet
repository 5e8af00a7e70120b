// LeeBERT-style training on RTE: exits teach each other with learned weights; patience.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').leebert
