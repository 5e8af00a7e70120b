// Zero Time Waste on RTE: cascaded heads on a frozen network, and their ensembles.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').ztw
