// PALBERT on RTE: a learned distribution over halting exits, and its median.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').palbert
