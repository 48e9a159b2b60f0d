// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist/article.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "distributed/server.h"
#include "examples/mnist/model.h"
#include "nlohmann/json.hpp"
#include "ops/ops.h"
#include "saver/meta_graph.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/optimizer.h"
#include "train/summaries.h"

ABSL_FLAG(int64_t, batch_size, 100, "images in a step; need not divide the sizes of the data");
ABSL_FLAG(int64_t, max_steps, 10000, "global steps of all trainers together");
ABSL_FLAG(int64_t, checkpoint, 100, "global steps between checkpoints, scores and reports");
ABSL_FLAG(std::string, log_dir, "mnist_logs",
          "directory of checkpoints and summaries; all tasks must see it");
ABSL_FLAG(std::string, model_dir, "mnist_model", "directory of the exported model");
ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(uint64_t, seed, 1, "of initial values, dropout, drawn digits and the order of images");

namespace millrace {
namespace {

constexpr double kLearningRate = 1e-4;

Output ZerosByDefault(const Scope& scope, const std::string& name, int64_t rows, int64_t columns) {
  const Output zeros = Fill(
      scope, Const<int32_t>(scope, {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}),
      Const(scope, 0.0f));
  return PlaceholderWithDefault(scope.WithName(name), zeros, {-1, columns});
}

Output ScalarByDefault(const Scope& scope, const std::string& name, float value) {
  return PlaceholderWithDefault(scope.WithName(name), Const(scope, value), PartialShape::Scalar());
}

}  // namespace

StatusOr<ArticleJob> ArticleJobFromFlags() {
  ArticleJob job{absl::GetFlag(FLAGS_batch_size), absl::GetFlag(FLAGS_max_steps),
                 absl::GetFlag(FLAGS_checkpoint), absl::GetFlag(FLAGS_log_dir),
                 absl::GetFlag(FLAGS_model_dir),  absl::GetFlag(FLAGS_data),
                 absl::GetFlag(FLAGS_seed)};
  for (const auto& [flag, value] : {std::pair<const char*, int64_t>{"batch_size", job.batch_size},
                                    {"max_steps", job.max_steps},
                                    {"checkpoint", job.checkpoint}}) {
    if (value < 1) return InvalidArgument("--", flag, ": must be >= 1, got ", value);
  }
  for (const auto& [flag, value] :
       {std::pair<const char*, const std::string&>{"log_dir", job.log_dir},
        {"model_dir", job.model_dir}}) {
    if (value.empty()) return InvalidArgument("--", flag, ": must name a directory, got \"\"");
  }
  return job;
}

ArticleGraph BuildArticleGraph(const Scope& scope, int64_t batch_size) {
  ArticleGraph graph;
  graph.images = ZerosByDefault(scope, "images", batch_size, kDigitPixels);
  graph.labels = ZerosByDefault(scope, "labels", batch_size, kDigitClasses);
  graph.keep_prob = ScalarByDefault(scope, "keep_prob", 1);
  graph.test_loss = ScalarByDefault(scope, "judged/loss", 0);
  graph.test_accuracy = ScalarByDefault(scope, "judged/accuracy", 0);
  AddScalarSummary(scope, "Test_loss", graph.test_loss);
  AddScalarSummary(scope, "Test_accuracy", graph.test_accuracy);
  graph.global_step = GlobalStep(scope);
  const MnistModel model = BuildMnistModel(scope, graph.images, graph.keep_prob);
  AddHistogramSummary(scope, "conv_filters1", model.filters1.value);
  AddHistogramSummary(scope, "conv_filters2", model.filters2.value);
  const Output p = model.probabilities;
  {
    const Scope optimizer = scope.WithSubScope("optimizer");
    graph.loss = Neg(optimizer.WithName("loss"),
                     ReduceSum(optimizer, Mul(optimizer, graph.labels, Log(optimizer, p))));
    graph.train = AdamOptimizer({.learning_rate = kLearningRate})
                      .Minimize(optimizer, graph.loss, {.global_step = graph.global_step});
  }
  const Scope evaluator = scope.WithSubScope("evaluator");
  const Output one = Const(evaluator, int32_t{1});
  const Output correct =
      Equal(evaluator, ArgMax(evaluator, p, one), ArgMax(evaluator, graph.labels, one));
  graph.accuracy = ReduceMean(evaluator.WithName("accuracy"), Cast(evaluator, correct, DT_FLOAT));
  graph.summaries = MergeAllSummaries(scope);
  return graph;
}

StatusOr<ArticleScore> JudgeArticle(Session* session, const ArticleGraph& graph,
                                    const Digits& digits, int64_t batch_size) {
  ArticleScore score;
  for (int64_t begin = 0; begin < digits.size(); begin += batch_size) {
    const int64_t count = std::min(batch_size, digits.size() - begin);
    MR_ASSIGN_OR_RETURN(DigitBatch batch, MakeBatch(digits, begin, count));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        session->Run({{graph.images, std::move(batch.images)},
                                      {graph.labels, std::move(batch.labels)}},
                                     {graph.loss, graph.accuracy}));
    score.loss += static_cast<double>(out[0].scalar<float>());
    score.accuracy += static_cast<double>(out[1].scalar<float>()) * static_cast<double>(count);
  }
  score.accuracy /= static_cast<double>(std::max<int64_t>(digits.size(), 1));
  return score;
}

Status JudgeAndShow(Session* session, const ArticleGraph& graph, const Digits& test,
                    int64_t batch_size, int64_t step,
                    const std::function<Status(const std::string& summary, int64_t step)>& show) {
  MR_ASSIGN_OR_RETURN(const ArticleScore score, JudgeArticle(session, graph, test, batch_size));
  LogInfo("Step: ", step, ", Test loss: ", score.loss, ", Test accuracy: ", score.accuracy);
  MR_ASSIGN_OR_RETURN(
      const std::vector<Tensor> out,
      session->Run(
          {{graph.test_loss, Tensor::Scalar<float>(static_cast<float>(score.loss))},
           {graph.test_accuracy, Tensor::Scalar<float>(static_cast<float>(score.accuracy))}},
          {graph.summaries}));
  return show(out[0].scalar<std::string>(), step);
}

Status ExportArticle(const std::string& checkpoint, const std::string& model_dir) {
  Scope root;
  const Output image = Placeholder(root.WithName("image"), DT_FLOAT, {-1, kDigitPixels});
  const Output scores = BuildMnistModel(root, image, std::nullopt).probabilities;
  const Output key = Placeholder(root.WithName("key"), DT_INT64, {-1});
  const Output key_out = Identity(root.WithName("key_out"), key);
  const nlohmann::json inputs = {{"key", key.name()}, {"image", image.name()}};
  const nlohmann::json outputs = {{"key", key_out.name()}, {"scores", scores.name()}};
  root.AddToBytesCollection("inputs", inputs.dump());
  root.AddToBytesCollection("outputs", outputs.dump());

  MR_ASSIGN_OR_RETURN(const auto saver,
                      Saver::Make(root, {.sharded = false, .write_meta_graph = false}));
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), checkpoint));
  MR_RETURN_IF_ERROR(FileSystem::Default()->RecursivelyCreateDirectory(model_dir));
  MetaGraphOptions meta_options;
  meta_options.saver_def = saver->def();
  MR_ASSIGN_OR_RETURN(const auto meta, ExportMetaGraph(root, meta_options));
  MR_RETURN_IF_ERROR(
      WriteMetaGraph(FileSystem::Default(), JoinPath(model_dir, "export.meta"), meta));
  MR_RETURN_IF_ERROR(
      saver->Save(session.get(), JoinPath(model_dir, "export"), std::nullopt).status());
  return session->Close();
}

BatchIterator BatchesOf(const DigitSets& data, const ArticleJob& job,
                        const ClusterConfig& cluster) {
  const uint64_t task = cluster.is_chief() ? 0 : 1 + static_cast<uint64_t>(cluster.task());
  return BatchIterator(&data.train, job.seed * 1000003 + task);
}

Status RunArticleTask(ArticleTrainer train) {
  MR_ASSIGN_OR_RETURN(const ArticleJob job, ArticleJobFromFlags());
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::FromEnvironment());
  MR_ASSIGN_OR_RETURN(const auto server, Server::Start(cluster));
  if (cluster.job() == "ps") {
    return server->Join({.exit_when_done = true, .logdir = job.log_dir});
  }
  return train(job, cluster, server->target());
}

}  // namespace millrace
