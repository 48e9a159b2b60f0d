// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_MNIST_ARTICLE_H_
#define MILLRACE_EXAMPLES_MNIST_ARTICLE_H_

// The digit network as a well-known article on distributed TensorFlow trains and exports it, for
// the two programs that do the same here: mnist_dist (Supervisor) and mnist_monitored
// (MonitoredTrainingSession). mnist_train is the same network with what is better today.
//
// What is the article's, and other in mnist_train:
//   * the loss is -sum(t log p) of the softmax's output. A p of 0 where t is 1 makes it infinite
//     and where t is 0 makes it NaN (0 log 0), which is what IEEE 754 says; the NaN guard ends the
//     task then and names the step;
//   * everything that is fed has a default, so that summaries run without an image;
//   * the chief judges the model on all test images within its training loop: it does fewer steps
//     than the others;
//   * the model is exported as export.meta and a checkpoint, with the collections `inputs` and
//     `outputs` that say in JSON which tensors to feed and to fetch.

#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "examples/mnist/digits.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"

namespace millrace {

// The flags of both programs.
struct ArticleJob {
  int64_t batch_size, max_steps, checkpoint;
  std::string log_dir, model_dir, data;
  uint64_t seed;
};
// InvalidArgument names the flag.
StatusOr<ArticleJob> ArticleJobFromFlags();

struct ArticleGraph {
  Output images;         // [n, 784]; zeros unless fed
  Output labels;         // [n, 10], one-hot; zeros unless fed
  Output keep_prob;      // scalar; 1 unless fed (the article's 0 would divide by zero)
  Output test_loss;      // scalars that are fed to be shown
  Output test_accuracy;  //
  Output loss;           // summed over the batch
  Output accuracy;       // mean of the batch
  Operation train;
  Variable global_step;
  Output summaries;  // Test_loss, Test_accuracy, conv_filters1, conv_filters2: a serialized Summary
};
ArticleGraph BuildArticleGraph(const Scope& scope, int64_t batch_size);

struct ArticleScore {
  double loss = 0;      // summed over all images
  double accuracy = 0;  // mean
};
// All of `digits`; the last batch may be smaller.
StatusOr<ArticleScore> JudgeArticle(Session* session, const ArticleGraph& graph,
                                    const Digits& digits, int64_t batch_size);

// Judges the model and gives `show` the summaries of a step; says the score in the log.
Status JudgeAndShow(Session* session, const ArticleGraph& graph, const Digits& test,
                    int64_t batch_size, int64_t step,
                    const std::function<Status(const std::string& summary, int64_t step)>& show);

// A second graph, without devices, dropout and optimizer; `checkpoint` restored into it (what it
// has more, Adam's slots and the global step, is left out; NotFound names what it lacks); written
// as <model_dir>/export.meta and <model_dir>/export.
Status ExportArticle(const std::string& checkpoint, const std::string& model_dir);

// This task's part of the job that the flags and TF_CONFIG tell: a parameter server serves until
// the run has ended, others train with `train`, whose `target` is their own server.
using ArticleTrainer = Status (*)(const ArticleJob& job, const ClusterConfig& cluster,
                                  const std::string& target);
Status RunArticleTask(ArticleTrainer train);

// Batches in an order of the task's own.
BatchIterator BatchesOf(const DigitSets& data, const ArticleJob& job, const ClusterConfig& cluster);

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_MNIST_ARTICLE_H_
