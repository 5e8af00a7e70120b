// QQP (GLUE) on BERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('qqp', model='bert-large-uncased')
