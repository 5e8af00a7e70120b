// PALBERT on RTE: a learned distribution over halting exits, and its median.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').palbert
