// BranchyNet's training on RTE, and entropy.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').branchynet
