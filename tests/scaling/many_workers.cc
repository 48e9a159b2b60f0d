// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/many_workers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "tests/scaling/worker_parts.h"

namespace millrace::scaling {
namespace {

Status Check(const TogetherOptions& options) {
  if (options.workers < 1 || options.workers > 100'000) {
    return InvalidArgument("TrainTogether: workers must be in [1, 100000], got ", options.workers);
  }
  if (options.backup_workers < 0 ||
      options.backup_workers >= std::max<int64_t>(2, options.workers)) {
    return InvalidArgument("TrainTogether: backup_workers must be in [0, workers), got ",
                           options.backup_workers, " of ", options.workers);
  }
  if (options.local_steps < 1 || options.batch < 1 || options.evaluate_every < 1 ||
      options.smooth < 1) {
    return InvalidArgument(
        "TrainTogether: local_steps, batch, evaluate_every and smooth must be >= 1, got ",
        options.local_steps, ", ", options.batch, ", ", options.evaluate_every, " and ",
        options.smooth);
  }
  return absl::OkStatus();
}

// What the modes have in common.
class Job {
 public:
  Job(const Problem& problem, const TogetherOptions& options, WorkerParts parts,
      WorkerSpeeds speeds)
      : problem_(problem),
        options_(options),
        parts_(std::move(parts)),
        speeds_(std::move(speeds)) {}

  StatusOr<Together> Run() {
    MR_RETURN_IF_ERROR(options_.mode == UpdateMode::kLocal ? RunLocally() : RunByEvents());
    return std::move(result_);
  }

 private:
  // The end of a worker's step.
  struct Arrival {
    size_t worker = 0;
    int64_t round = 0;  // that it began in
    WorkerGradient gradient;
  };

  size_t workers() const { return static_cast<size_t>(options_.workers); }

  bool IsOver() const {
    if (result_.examples >= options_.until_examples) return true;
    return options_.until_auc && !smoothed_.empty() && smoothed_.back().auc >= *options_.until_auc;
  }

  StatusOr<WorkerGradient> NextGradient(size_t worker, Learner* learner) {
    MR_ASSIGN_OR_RETURN(const ExampleBatch batch,
                        problem_.Train(parts_.Next(worker, options_.batch)));
    return learner->Compute(batch);
  }

  // Counts an update, and evaluates behind it when it is time.
  Status Updated(Learner* learner) {
    ++result_.updates;
    if (result_.examples < next_evaluation_) return absl::OkStatus();
    while (next_evaluation_ <= result_.examples) next_evaluation_ += options_.evaluate_every;
    MR_ASSIGN_OR_RETURN(const double auc, learner->HeldOutAuc());
    result_.evaluations.push_back({static_cast<double>(result_.examples), result_.time, auc});
    smoothed_ = Smoothed(result_.evaluations, SmoothSpan(options_));
    return absl::OkStatus();
  }

  // The worker reads the variables of now. Its step ends later; the gradient is there already.
  Status Begin(size_t worker, Learner* learner) {
    MR_ASSIGN_OR_RETURN(WorkerGradient gradient, NextGradient(worker, learner));
    // Steps that end at the same time do so in the order in which they began.
    arrivals_[{result_.time + speeds_.NextStep(worker), num_begun_++}] = {
        .worker = worker, .round = result_.updates, .gradient = std::move(gradient)};
    return absl::OkStatus();
  }

  Status RunByEvents() {
    MR_ASSIGN_OR_RETURN(const auto learner, Learner::Make(problem_, options_.learner));
    const bool is_synchronous = options_.mode == UpdateMode::kSynchronous;
    const size_t asked = std::max<size_t>(
        1, workers() - std::min(workers(), static_cast<size_t>(options_.backup_workers)));
    for (size_t worker = 0; worker < workers(); ++worker) {
      MR_RETURN_IF_ERROR(Begin(worker, learner.get()));
    }
    // Of the round that runs.
    std::vector<WorkerGradient> given;
    std::vector<size_t> waiting;
    while (!IsOver()) {
      auto first = arrivals_.extract(arrivals_.begin());
      result_.time = first.key().first;
      Arrival& arrival = first.mapped();
      result_.examples += options_.batch;
      if (!is_synchronous) {
        MR_RETURN_IF_ERROR(learner->Apply(arrival.gradient));
        MR_RETURN_IF_ERROR(Updated(learner.get()));
        MR_RETURN_IF_ERROR(Begin(arrival.worker, learner.get()));
        continue;
      }
      if (arrival.round != result_.updates) {
        ++result_.dropped;
        MR_RETURN_IF_ERROR(Begin(arrival.worker, learner.get()));
        continue;
      }
      given.push_back(std::move(arrival.gradient));
      waiting.push_back(arrival.worker);
      if (given.size() < asked) continue;
      MR_ASSIGN_OR_RETURN(const WorkerGradient mean, learner->Mean(given));
      MR_RETURN_IF_ERROR(learner->Apply(mean));
      MR_RETURN_IF_ERROR(Updated(learner.get()));
      given.clear();
      for (const size_t worker : std::exchange(waiting, {})) {
        MR_RETURN_IF_ERROR(Begin(worker, learner.get()));
      }
    }
    MR_ASSIGN_OR_RETURN(const int64_t dropped, learner->NumDropped());
    result_.dropped += dropped;
    // The global step did not count them: so says the optimizer.
    result_.updates -= dropped;
    MR_ASSIGN_OR_RETURN(result_.weights, learner->Weights());
    return absl::OkStatus();
  }

  Status RunLocally() {
    std::vector<std::unique_ptr<Learner>> learners;
    for (size_t worker = 0; worker < workers(); ++worker) {
      MR_ASSIGN_OR_RETURN(auto learner, Learner::Make(problem_, options_.learner));
      learners.push_back(std::move(learner));
    }
    while (!IsOver()) {
      double longest = 0;
      for (size_t worker = 0; worker < workers(); ++worker) {
        double own = 0;
        for (int64_t step = 0; step < options_.local_steps; ++step) {
          MR_ASSIGN_OR_RETURN(const WorkerGradient gradient,
                              NextGradient(worker, learners[worker].get()));
          MR_RETURN_IF_ERROR(learners[worker]->Apply(gradient));
          own += speeds_.NextStep(worker);
        }
        longest = std::max(longest, own);
      }
      result_.examples += options_.workers * options_.local_steps * options_.batch;
      result_.time += longest;
      MR_RETURN_IF_ERROR(TakeMean(learners));
      MR_RETURN_IF_ERROR(Updated(learners[0].get()));
    }
    MR_ASSIGN_OR_RETURN(result_.weights, learners[0]->Weights());
    return absl::OkStatus();
  }

  // The variables of all become the mean of theirs.
  Status TakeMean(const std::vector<std::unique_ptr<Learner>>& learners) {
    if (learners.size() == 1) return absl::OkStatus();
    std::vector<Tensor> means;
    for (const auto& learner : learners) {
      MR_ASSIGN_OR_RETURN(const std::vector<Tensor> weights, learner->Weights());
      if (means.empty()) {
        for (const Tensor& weight : weights) {
          MR_ASSIGN_OR_RETURN(means.emplace_back(), weight.Clone());
        }
        continue;
      }
      for (size_t i = 0; i < means.size(); ++i) {
        MR_ASSIGN_OR_RETURN(const absl::Span<const float> from, weights[i].values<float>());
        const absl::Span<float> to = means[i].mutable_flat<float>();
        for (size_t j = 0; j < to.size(); ++j) to[j] += from[j];
      }
    }
    for (Tensor& mean : means) {
      for (float& value : mean.mutable_flat<float>()) {
        value /= static_cast<float>(learners.size());
      }
    }
    for (const auto& learner : learners) MR_RETURN_IF_ERROR(learner->SetWeights(means));
    return absl::OkStatus();
  }

  const Problem& problem_;
  const TogetherOptions& options_;
  WorkerParts parts_;
  WorkerSpeeds speeds_;
  // By the time of their end and the number of their begin.
  std::map<std::pair<double, int64_t>, Arrival> arrivals_;
  int64_t num_begun_ = 0;
  int64_t next_evaluation_ = options_.evaluate_every;
  std::vector<AucPoint> smoothed_;  // of the evaluations
  Together result_;
};

}  // namespace

StatusOr<Together> TrainTogether(const Problem& problem, const TogetherOptions& options) {
  MR_RETURN_IF_ERROR(Check(options));
  MR_ASSIGN_OR_RETURN(WorkerParts parts,
                      WorkerParts::Make(problem.num_train(), options.workers, options.seed));
  MR_ASSIGN_OR_RETURN(WorkerSpeeds speeds,
                      WorkerSpeeds::Make(options.workers, options.speeds, options.seed));
  Job job(problem, options, std::move(parts), std::move(speeds));
  return job.Run();
}

}  // namespace millrace::scaling
