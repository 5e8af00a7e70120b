// MuE's rule on RTE: leave when a layer changes little.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').mue
