// Shallow-Deep networks' training on RTE, and confidence.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').shallow_deep
