// The paper's search: batch size by learning rate, the best on validation data is kept.
{
  searched: { grid: { 'data_loader.batch_size': [8, 16, 32], 'trainer.optimizer.lr': [2e-5, 3e-5, 4e-5, 5e-5] }, select: 'best' },
}
