// RTE (GLUE) on BERT-base, as in the paper's Table 2.
(import 'beem/glue.libsonnet').task('rte', model='bert-base-uncased')
