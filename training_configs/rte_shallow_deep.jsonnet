// Shallow-Deep networks' training on RTE, and confidence.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').shallow_deep
