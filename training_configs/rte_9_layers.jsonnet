// The first nine layers of the network, trained as a network of their own, on RTE.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').reduced(9)
