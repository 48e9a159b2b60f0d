// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_fleet.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/logging.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_path.h"

namespace millrace {
namespace {

using State = FrontNodeState;

// How often it is looked whether a node that is starting takes connections. A fraction of what a
// start takes.
constexpr absl::Duration kLookPeriod = absl::Milliseconds(2);
constexpr size_t kMaxLastLine = 500;

void AnswerWithError(HttpRequest* request, int http_status, const Status& why) {
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (http_status == 429 || http_status == 503) headers.emplace_back("Retry-After", "1");
  request->Answer(http_status, std::move(headers), ErrorReply(why));
}

void AnswerWithReply(HttpRequest* request, NodeReply reply) {
  HttpHeaders headers;
  for (const char* const name : {"Content-Type", "Retry-After"}) {
    const absl::string_view value = reply.header(name[0] == 'C' ? "content-type" : "retry-after");
    if (!value.empty()) headers.emplace_back(name, std::string(value));
  }
  request->Answer(reply.status, std::move(headers), std::move(reply.body));
}

int PollMilliseconds(absl::Duration wait) {
  if (wait == absl::InfiniteDuration()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(wait);
  // Rounded up: a wait that ends too early would be taken up again at once.
  return static_cast<int>(std::clamp<int64_t>(ms + 1, 0, 1 << 30));
}

}  // namespace

StatusOr<std::unique_ptr<NodeFleet>> NodeFleet::Start(Options options) {
  if (options.socket_dir.size() > kMaxSocketDirBytes) {
    return InvalidArgument("Directory of sockets '", options.socket_dir,
                           "': its name must have at most ", kMaxSocketDirBytes, " bytes, got ",
                           options.socket_dir.size());
  }
  OwnedFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.open()) {
    return absl::ResourceExhaustedError(absl::StrCat("Fleet: eventfd: ", std::strerror(errno)));
  }
  auto fleet = std::unique_ptr<NodeFleet>(new NodeFleet(std::move(options), std::move(wake)));
  fleet->keeper_ = std::thread([keeping = fleet.get()] { keeping->Keep(); });
  return fleet;
}

NodeFleet::~NodeFleet() { Stop(); }

void NodeFleet::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
}

void NodeFleet::SetVersions(const std::vector<FleetVersion>& versions) {
  MutexLock lock(&mu_);
  std::set<int64_t> ids;
  for (const FleetVersion& settings : versions) {
    ids.insert(settings.id);
    if (stopping_ || versions_.count(settings.id) > 0) continue;
    auto version = std::make_unique<Version>();
    version->settings = settings;
    const int64_t at_a_time =
        int64_t{settings.max_nodes} * settings.target * int64_t{kMostPerTarget};
    version->senders =
        std::make_unique<IoPool>(static_cast<int>(std::clamp<int64_t>(at_a_time, 1, kMostSenders)));
    versions_[settings.id] = std::move(version);
  }
  for (const auto& [id, version] : versions_) {
    if (ids.count(id) == 0) version->wanted = false;
  }
  Wake();
}

void NodeFleet::Predict(int64_t id, std::unique_ptr<HttpRequest> request) {
  Deeds deeds;
  {
    MutexLock lock(&mu_);
    const auto it = versions_.find(id);
    if (it == versions_.end()) {
      deeds.refused.push_back(
          {.request = std::move(request),
           .why = stopping_ ? absl::UnavailableError("Front: it must not be stopping, got a stop")
                            : absl::NotFoundError("Version: it must exist, got a deleted one")});
    } else {
      Version& version = *it->second;
      const absl::Time now = absl::Now();
      version.last_use = now;
      version.waiting.push_back(
          {.request = std::move(request), .deadline = now + options_.hold_time});
      Turn(&version, /*is_keeper=*/false, &deeds);
    }
  }
  CarryOut(std::move(deeds));
}

FleetStatus NodeFleet::StatusOf(int64_t id) const {
  MutexLock lock(&mu_);
  FleetStatus status;
  const auto it = versions_.find(id);
  if (it == versions_.end()) return status;
  const Version& version = *it->second;
  bool has_ready = false;
  for (const auto& node : version.nodes) {
    has_ready = has_ready || node->plan.state == State::kReady;
    status.nodes.push_back(
        {.state = node->plan.state, .pid = node->pid, .running = node->plan.running});
  }
  status.num_waiting = version.waiting.size();
  status.is_failing = !has_ready && version.failures >= options_.plan.failures_that_refuse;
  status.last_error = version.last_error;
  status.last_use = version.last_use;
  return status;
}

void NodeFleet::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& [id, version] : versions_) version->wanted = false;
  }
  Wake();
  if (keeper_.joinable()) keeper_.join();
}

absl::Time NodeFleet::Turn(Version* version, bool is_keeper, Deeds* deeds) {
  while (true) {
    PlannedNodes planned = {.wanted = version->wanted,
                            .min_nodes = version->settings.min_nodes,
                            .max_nodes = version->settings.max_nodes,
                            .target = version->settings.target,
                            .idle_time = version->settings.idle_time,
                            .failures = version->failures,
                            .failed_at = version->failed_at};
    for (const auto& node : version->nodes) planned.nodes.push_back(node->plan);
    for (const Waiting& waiting : version->waiting) {
      planned.waiting.push_back({.deadline = waiting.deadline});
    }
    const NodePlan plan = PlanFrontNodes(planned, options_.plan, absl::Now());
    if (plan.steps.empty()) {
      if (!is_keeper && plan.next_time < keeper_next_) Wake();
      return plan.next_time;
    }
    if (!Apply(version, plan, is_keeper, deeds)) {
      Wake();
      return plan.next_time;
    }
  }
}

bool NodeFleet::Apply(Version* version, const NodePlan& plan, bool is_keeper, Deeds* deeds) {
  const absl::Time now = absl::Now();
  bool all = true;
  // Places in the plan are those before it.
  std::vector<std::list<Waiting>::iterator> waiting;
  for (auto it = version->waiting.begin(); it != version->waiting.end(); ++it) {
    waiting.push_back(it);
  }
  const std::vector<std::shared_ptr<Node>> nodes = version->nodes;
  for (const NodeStep& step : plan.steps) {
    switch (step.action) {
      case NodeAction::kSend: {
        const std::shared_ptr<Node>& node = nodes[step.node];
        ++node->plan.running;
        ++version->num_sending;
        deeds->sent.push_back(
            {.version = version, .node = node, .waiting = std::move(*waiting[step.request])});
        version->waiting.erase(waiting[step.request]);
        continue;
      }
      case NodeAction::kTooMany:
      case NodeAction::kTooLate:
      case NodeAction::kNoNode:
      case NodeAction::kNoVersion:
        deeds->refused.push_back({.request = std::move(waiting[step.request]->request),
                                  .why = RefusalOf(*version, step.action)});
        version->waiting.erase(waiting[step.request]);
        continue;
      case NodeAction::kStart:
      case NodeAction::kDrain:
      case NodeAction::kStop:
      case NodeAction::kKill:
        break;
    }
    if (!is_keeper) {
      all = false;
      continue;
    }
    if (step.action == NodeAction::kStart) {
      StartNode(version);
      continue;
    }
    Node& node = *nodes[step.node];
    if (step.action == NodeAction::kKill) {
      LogWarning(version->settings.label, ": kills node ", node.id, " (pid ", node.pid,
                 "), which is ", FrontNodeStateName(node.plan.state));
      node.plan.killed = true;
      node.process->Signal(SIGKILL);
      continue;
    }
    const bool stops = step.action == NodeAction::kStop;
    node.plan.state = stops ? State::kStopping : State::kDraining;
    node.plan.since = now;
    if (stops) {
      node.asked = true;
      node.client->DropKept();
      node.process->Signal(SIGTERM);
    }
  }
  return all;
}

Status NodeFleet::RefusalOf(const Version& version, NodeAction action) const {
  const std::string& label = version.settings.label;
  const std::string reason =
      version.last_error.empty() ? "" : absl::StrCat("; the last failure: ", version.last_error);
  switch (action) {
    case NodeAction::kTooMany:
      return absl::ResourceExhaustedError(
          absl::StrCat("Version ", label, ": at most ", options_.plan.max_waiting,
                       " requests must wait for a node, got one more"));
    case NodeAction::kTooLate:
      return absl::UnavailableError(absl::StrCat("Version ", label, ": a node must be free within ",
                                                 absl::FormatDuration(options_.hold_time),
                                                 ", got none", reason));
    case NodeAction::kNoNode:
      return absl::UnavailableError(absl::StrCat("Version ", label, ": its nodes must start, got ",
                                                 version.failures, " failures in a row", reason));
    default:
      break;
  }
  if (stopping_) return absl::UnavailableError("Front: it must not be stopping, got a stop");
  return absl::NotFoundError(absl::StrCat("Version ", label, ": it must exist, got a deleted one"));
}

void NodeFleet::Fail(Version* version, const std::string& why) {
  ++version->failures;
  version->failed_at = absl::Now();
  version->last_error = why;
  LogWarning(version->settings.label, ": ", why);
}

std::string NodeFleet::BaseDirectory(const Version& version) const {
  return absl::StrCat(options_.socket_dir, "/v", version.settings.id);
}

void NodeFleet::StartNode(Version* version) {
  // A server's version is a directory whose name is a number.
  const std::string base = BaseDirectory(*version), link = absl::StrCat(base, "/1");
  if ((mkdir(base.c_str(), 0700) != 0 && errno != EEXIST) ||
      (symlink(version->settings.directory.c_str(), link.c_str()) != 0 && errno != EEXIST)) {
    return Fail(version, absl::StrCat("'", link, "': ", std::strerror(errno)));
  }
  auto node = std::make_shared<Node>();
  node->id = next_node_++;
  node->socket_path = absl::StrCat(options_.socket_dir, "/n", node->id);
  node->client = std::make_unique<NodeClient>(node->socket_path);
  std::vector<std::string> command = {
      options_.model_server,
      "--port=0",
      absl::StrCat("--rest_socket_path=", node->socket_path),
      absl::StrCat("--model_name=", version->settings.model),
      absl::StrCat("--model_base_path=", base),
      "--file_system_poll_wait_seconds=0",
      "--max_num_load_retries=0",
      "--trust_new_versions",
      absl::StrCat("--rest_api_timeout_in_ms=", absl::ToInt64Milliseconds(options_.request_time))};
  command.insert(command.end(), options_.node_flags.begin(), options_.node_flags.end());
  StatusOr<std::unique_ptr<NodeProcess>> process = NodeProcess::Start(std::move(command));
  if (!process.ok()) return Fail(version, std::string(process.status().message()));
  node->process = *std::move(process);
  node->pid = node->process->pid();
  node->plan.since = absl::Now();
  LogInfo(version->settings.label, ": starts node ", node->id, ", pid ", node->pid);
  version->nodes.push_back(std::move(node));
}

void NodeFleet::CarryOut(Deeds deeds) {
  for (const std::string& line : deeds.lines) LogInfo(line);
  for (Refused& refused : deeds.refused) {
    AnswerWithError(refused.request.get(), HttpStatus(refused.why.code()), refused.why);
  }
  for (Sent& sent : deeds.sent) {
    Version* const version = sent.version;
    version->senders->Schedule(
        [this, version, node = std::move(sent.node), waiting = std::move(sent.waiting)]() mutable {
          Send(version, node, std::move(waiting));
        });
  }
}

void NodeFleet::Send(Version* version, const std::shared_ptr<Node>& node, Waiting waiting) {
  using Result = NodeExchange::Result;
  const HttpRequest& request = *waiting.request;
  const absl::string_view type = request.header("Content-Type");
  const std::string model = absl::StrCat("/v1/models/", version->settings.model);
  const absl::Time deadline = absl::Now() + options_.request_time;
  NodeExchange done = request.method() == "GET"
                          ? node->client->Get(absl::StrCat(model, "/metadata"), deadline)
                          : node->client->Post(absl::StrCat(model, ":predict"),
                                               type.empty() ? "application/json" : type,
                                               request.body(), deadline, request.header("Accept"));
  const bool not_sent = done.result == Result::kRefused || done.result == Result::kNotSent;
  const bool again = not_sent && ++waiting.tries < kMostTries;
  const std::string where =
      absl::StrCat("Node ", node->id, " of version ", version->settings.label);
  std::unique_ptr<HttpRequest> answered;
  Deeds deeds;
  {
    MutexLock lock(&mu_);
    const absl::Time now = absl::Now();
    version->last_use = now;
    if (--node->plan.running == 0) node->plan.idle_since = now;
    if (done.result == Result::kRefused && node->plan.state == State::kReady) {
      node->plan.state = State::kLost;
      node->plan.since = now;
    }
    if (again) {
      version->waiting.push_front(std::move(waiting));
    } else {
      answered = std::move(waiting.request);
    }
    Turn(version, /*is_keeper=*/false, &deeds);
    if (!version->wanted) Wake();
    --version->num_sending;  // the last use of the version, but for what deeds.sent counts
  }
  CarryOut(std::move(deeds));
  if (answered == nullptr) return;
  switch (done.result) {
    case Result::kReplied:
      return AnswerWithReply(answered.get(), std::move(done.reply));
    case Result::kRefused:
    case Result::kNotSent:
      return AnswerWithError(
          answered.get(), 503,
          absl::UnavailableError(absl::StrCat(where, ": it must take the request, got ", done.why,
                                              ", ", kMostTries, " times")));
    case Result::kBroken:
      return AnswerWithError(answered.get(), 502,
                             absl::UnavailableError(absl::StrCat(
                                 where, ": it must answer the request that it got, got ", done.why,
                                 "; it was not sent again, it may have run")));
    case Result::kTimedOut:
      return AnswerWithError(answered.get(), 504,
                             absl::DeadlineExceededError(absl::StrCat(
                                 where, ": it must answer within ",
                                 absl::FormatDuration(options_.request_time), ", got no reply")));
  }
}

void NodeFleet::Ended(Version* version, Node* node, int exit_code) {
  unlink(node->socket_path.c_str());
  const absl::Time now = absl::Now();
  const bool was_stable = node->was_ready && now - node->ready_at >= options_.plan.stable_time;
  if (node->asked) {
    if (node->was_ready) version->failures = 0;
    LogInfo(version->settings.label, ": node ", node->id, " has ended");
    return;
  }
  if (was_stable) version->failures = 0;
  Fail(version,
       absl::StrCat(
           "node ", node->id, " (pid ", node->pid, ") ended with ",
           exit_code > 128 ? absl::StrCat("signal ", exit_code - 128)
                           : absl::StrCat("exit code ", exit_code),
           node->was_ready ? "" : " before it was ready",
           node->last_line.empty() ? "" : absl::StrCat("; its last line: ", node->last_line)));
}

void NodeFleet::Look(Version* version, Deeds* deeds) {
  for (size_t i = version->nodes.size(); i-- > 0;) {
    Node& node = *version->nodes[i];
    const auto read = [&](absl::string_view line) {
      deeds->lines.push_back(
          absl::StrCat("[", version->settings.label, " node ", node.id, "] ", line));
      node.last_line = std::string(line.substr(0, kMaxLastLine));
    };
    node.process->ReadOutput(read);
    if (const std::optional<int> code = node.process->exit_code(); code.has_value()) {
      node.process->ReadOutput(read);  // what it said at its end
      Ended(version, &node, *code);
      node.process.reset();
      version->nodes.erase(version->nodes.begin() + static_cast<ptrdiff_t>(i));
    } else if (node.plan.state == State::kStarting && node.client->CanConnect()) {
      node.plan.state = State::kReady;
      node.plan.since = node.plan.idle_since = node.ready_at = absl::Now();
      node.was_ready = true;
    }
  }
}

void NodeFleet::Keep() {
  while (true) {
    Deeds deeds;
    std::vector<std::unique_ptr<Version>> gone;
    std::vector<pollfd> fds = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    absl::Time next = absl::InfiniteFuture();
    bool ends;
    {
      MutexLock lock(&mu_);
      for (auto it = versions_.begin(); it != versions_.end();) {
        Version& version = *it->second;
        Look(&version, &deeds);
        next = std::min(next, Turn(&version, /*is_keeper=*/true, &deeds));
        if (!version.wanted && version.nodes.empty() && version.waiting.empty() &&
            version.num_sending == 0) {
          gone.push_back(std::move(it->second));
          it = versions_.erase(it);
          continue;
        }
        for (const auto& node : version.nodes) {
          fds.push_back({.fd = node->process->end_fd(), .events = POLLIN, .revents = 0});
          // -1, which poll passes over, at its end.
          fds.push_back({.fd = node->process->output_fd(), .events = POLLIN, .revents = 0});
          if (node->plan.state == State::kStarting) {
            next = std::min(next, absl::Now() + kLookPeriod);
          }
        }
        ++it;
      }
      ends = stopping_ && versions_.empty();
      keeper_next_ = next;
    }
    CarryOut(std::move(deeds));
    for (const std::unique_ptr<Version>& version : gone) {
      const std::string base = BaseDirectory(*version);
      unlink(absl::StrCat(base, "/1").c_str());
      rmdir(base.c_str());
    }
    gone.clear();  // waits for its senders, which have nothing left to do
    if (ends) return;
    const absl::Duration wait = next - absl::Now();
    poll(fds.data(), fds.size(), PollMilliseconds(wait));
    uint64_t wakes;
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &wakes, sizeof(wakes));
  }
}

}  // namespace millrace
