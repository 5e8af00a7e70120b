// Shallow-Deep networks' training on RTE, and confidence.
(import 'beem/glue.libsonnet').task('rte', epochs=10) + (import 'beem/methods.libsonnet').shallow_deep
