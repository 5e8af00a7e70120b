// MuE's rule on RTE: leave when a layer changes little.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').mue
