// RTE (GLUE) on BERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('rte', model='bert-large-uncased')
