// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/simulated_network.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/tensor.h"
#include "distributed/testing/forwarding_control.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/worker/in_process_control.h"
#include "graph/graph.h"
#include "run/training_run.h"

namespace millrace {
namespace {

// Between two keepalive pings, and for the answer (net/grpc_settings.h).
constexpr absl::Duration kSilence = absl::Seconds(30);
// Between two attempts to reach a task that is not there.
constexpr absl::Duration kReconnect = absl::Seconds(1);

Status Lost(const std::string& task, const std::string& why) {
  return absl::UnavailableError(absl::StrCat(task, ": ", why));
}

std::string CodeOf(const Status& status) { return absl::StatusCodeToString(status.code()); }

}  // namespace

std::string ShortTask(absl::string_view task) {
  return absl::StrReplaceAll(task, {{"/job:", ""}, {"/replica:0/task:", ""}, {"worker", "w"}});
}

struct SimulatedNetwork::Call {
  int64_t number = 0;
  const char* method = "";
  std::shared_ptr<Life> from;
  std::string to;
  bool wait_for_ready = false;
  Served serve;  // what is done where it arrives
  WorkerControl::Done done;
  CancellationManager* cancellation = nullptr;
  CancellationManager::Token token = 0;
  bool is_over = false;  // at the caller
  bool is_lost = false;  // nothing comes back any more
  bool timed = false;
  Simulation::EventId deadline_event;

  std::shared_ptr<Life> at;  // where it arrived
  CancellationManager at_server;
  bool answered = false;
};

// --- Lives ---------------------------------------------------------------------------------------

std::shared_ptr<SimulatedNetwork::Life> SimulatedNetwork::Begin(const std::string& task) {
  auto life = std::make_shared<Life>();
  life->task = task;
  life->place = simulation_->AddPlace(ShortTask(task));
  return life;
}

void SimulatedNetwork::Attach(const std::shared_ptr<Life>& life, Worker* worker) {
  life->worker = worker;
  lives_[life->task] = life;
  simulation_->TraceLine(absl::StrCat(ShortTask(life->task), " is up"));
}

void SimulatedNetwork::Kill(const std::shared_ptr<Life>& life) {
  simulation_->TraceLine(absl::StrCat(ShortTask(life->task), " is killed"));
  life->is_over = true;
  lives_.erase(life->task);
  std::vector<std::shared_ptr<Call>> own, lost;
  for (const auto& [number, call] : open_) {
    if (call->from == life) {
      own.push_back(call);
    } else if (call->at == life) {
      lost.push_back(call);
    }
  }
  for (const auto& call : own) End(call, Lost(life->task, "killed"), "dies with its caller");
  for (const auto& call : lost) {
    const bool cut = IsCut(call->to, call->from->task);
    if (!call->answered) Lose(call, cut ? kSilence : Delay(), "Socket closed");
  }
  life->place->EndSleeps();
  life->killed.StartCancel();
}

void SimulatedNetwork::Cut(const std::string& from, const std::string& to) {
  const int64_t number = ++last_cut_;
  cut_[{from, to}] = number;
  simulation_->TraceLine(absl::StrCat(ShortTask(from), " -> ", ShortTask(to), " is cut"));
  // Then both sides take each other for lost.
  simulation_->After(kSilence, [this, from, to, number]() -> Simulation::Place* {
    const auto it = cut_.find({from, to});
    if (it == cut_.end() || it->second != number) return nullptr;
    std::vector<std::shared_ptr<Call>> lost;
    for (const auto& [id, call] : open_) {
      const std::string& caller = call->from->task;
      if ((caller == from && call->to == to) || (caller == to && call->to == from)) {
        lost.push_back(call);
      }
    }
    for (const auto& call : lost) Lose(call, absl::ZeroDuration(), "keepalive watchdog timeout");
    return nullptr;
  });
}

void SimulatedNetwork::HealAll() {
  if (!cut_.empty()) simulation_->TraceLine("all links are whole");
  cut_.clear();
}

std::string SimulatedNetwork::OpenCalls() const {
  std::string result;
  for (const auto& [number, call] : open_) {
    absl::StrAppend(&result, " #", number, " ", call->method, " of ", ShortTask(call->from->task),
                    " to ", ShortTask(call->to), ";");
  }
  return result;
}

// --- Calls ---------------------------------------------------------------------------------------

absl::Duration SimulatedNetwork::Delay() {
  const bool is_long = simulation_->Chance(rates.long_delay);
  return simulation_->DrawTime(is_long ? rates.longest_delay : rates.usual_delay) +
         absl::Microseconds(50);
}

void SimulatedNetwork::TraceCall(const Call& call, absl::string_view what, bool back) {
  simulation_->TraceLine(absl::StrCat(ShortTask(call.from->task), back ? " <- " : " -> ",
                                      ShortTask(call.to), " #", call.number, " ", call.method, " ",
                                      what));
}

void SimulatedNetwork::BeginCall(std::shared_ptr<Call> call, const CallOptions& options) {
  // Whoever is being destroyed reaches nobody.
  if (call->from->is_over) return call->done(Lost(call->to, "killed"));
  call->from->place->Act();
  call->number = ++calls_begun_;
  call->wait_for_ready = options.wait_for_ready;
  open_[call->number] = call;
  TraceCall(*call, "begins");
  const auto cancelled = [this, weak = std::weak_ptr<Call>(call)] {
    simulation_->After(absl::ZeroDuration(), [this, weak]() -> Simulation::Place* {
      const std::shared_ptr<Call> cancelled_call = weak.lock();
      if (cancelled_call == nullptr || cancelled_call->is_over) return nullptr;
      End(cancelled_call, absl::CancelledError("Call was cancelled"), "is cancelled");
      return cancelled_call->from->place;
    });
  };
  if (options.cancellation != nullptr) {
    if (options.cancellation->Register(&call->token, cancelled)) {
      call->cancellation = options.cancellation;
    } else {
      cancelled();
    }
  }
  if (options.deadline != absl::InfiniteFuture()) {
    call->timed = true;
    call->deadline_event = simulation_->At(options.deadline, [this, call]() -> Simulation::Place* {
      End(call, absl::DeadlineExceededError("Deadline Exceeded"), "is out of time");
      return call->from->place;
    });
  }
  if (simulation_->Chance(rates.lost_request)) {
    TraceCall(*call, "is lost");
    return Lose(call, simulation_->DrawTime(kSilence), "connection reset");
  }
  simulation_->After(Delay(), [this, call]() -> Simulation::Place* {
    Arrive(call);
    return call->at == nullptr ? nullptr : call->at->place;
  });
}

void SimulatedNetwork::Arrive(const std::shared_ptr<Call>& call) {
  if (IsCut(call->from->task, call->to)) {
    TraceCall(*call, "meets a cut link");
    if (!call->is_over) Lose(call, kSilence, "keepalive watchdog timeout");
    return;
  }
  const auto it = lives_.find(call->to);
  if (it == lives_.end()) {
    if (call->is_over) return;
    if (call->wait_for_ready) {
      simulation_->After(kReconnect, [this, call]() -> Simulation::Place* {
        Arrive(call);
        return call->at == nullptr ? nullptr : call->at->place;
      });
      return;
    }
    TraceCall(*call, "finds nobody");
    return Lose(call, Delay(), "Connection refused");
  }
  call->at = it->second;
  TraceCall(*call, "arrives");
  served_[call->number] = call;
  if (call->is_over) {
    // Its end follows it on the same way.
    simulation_->After(absl::Microseconds(1), [this, call] {
      CancelAtServer(call);
      return call->at->place;
    });
  }
  call->serve(call);
}

void SimulatedNetwork::SendBack(const std::shared_ptr<Call>& call, absl::string_view what,
                                absl::AnyInvocable<void()> take) {
  if (call->at->is_over || call->is_lost || call->is_over) return;
  if (simulation_->Chance(rates.lost_answer)) {
    TraceCall(*call, absl::StrCat(what, " is lost"), /*back=*/true);
    return Lose(call, simulation_->DrawTime(kSilence), "connection reset");
  }
  call->at->place->Act();
  simulation_->At(simulation_->Now() + Delay(),
                  [this, call, what = std::string(what),
                   take = std::move(take)]() mutable -> Simulation::Place* {
                    if (call->is_over || call->is_lost) return nullptr;
                    if (IsCut(call->to, call->from->task)) {
                      TraceCall(*call, absl::StrCat(what, " meets a cut link"), /*back=*/true);
                      Lose(call, kSilence, "keepalive watchdog timeout");
                      return nullptr;
                    }
                    TraceCall(*call, what, /*back=*/true);
                    take();
                    return call->from->place;
                  });
}

void SimulatedNetwork::Answer(const std::shared_ptr<Call>& call, const Status& status,
                              absl::AnyInvocable<void()> take) {
  // Whoever is being destroyed is heard by nobody.
  if (call->at->is_over) return;
  if (call->answered) {
    return simulation_->Violated(absl::StrCat(call->method, " #", call->number, " at ",
                                              ShortTask(call->to),
                                              " was answered twice: ", status.ToString()));
  }
  call->answered = true;
  served_.erase(call->number);
  SendBack(call, absl::StrCat("answers ", CodeOf(status)),
           [this, call, status, take = std::move(take)]() mutable {
             if (status.ok()) take();
             End(call, status, "");
           });
}

void SimulatedNetwork::Lose(const std::shared_ptr<Call>& call, absl::Duration noticed_after,
                            const std::string& why) {
  if (call->is_over || call->is_lost) return;
  call->is_lost = true;
  simulation_->After(noticed_after, [this, call, why]() -> Simulation::Place* {
    if (call->is_over) return nullptr;
    End(call, Lost(call->to, why), "is given up");
    return call->from->place;
  });
}

void SimulatedNetwork::End(const std::shared_ptr<Call>& call, const Status& status,
                           absl::string_view how) {
  if (call->is_over) return;
  call->is_over = true;
  ++calls_ended_;
  open_.erase(call->number);
  if (!how.empty()) TraceCall(*call, how);
  if (call->timed) simulation_->Cancel(call->deadline_event);
  if (call->cancellation != nullptr) call->cancellation->Deregister(call->token);
  if (call->at != nullptr && !call->answered) {
    const bool cut = IsCut(call->from->task, call->to);
    simulation_->After(cut ? kSilence : Delay(), [this, call] {
      CancelAtServer(call);
      return call->at->place;
    });
  }
  WorkerControl::Done done = std::move(call->done);
  done(status);
}

void SimulatedNetwork::CancelAtServer(const std::shared_ptr<Call>& call) {
  if (call->answered || call->at->is_over) return;
  TraceCall(*call, "is cancelled there");
  call->at_server.StartCancel();
}

// --- The controls --------------------------------------------------------------------------------

class SimulatedNetwork::Way : public WorkerControl {
 public:
  Way(SimulatedNetwork* network, std::shared_ptr<Life> from, std::string to)
      : network_(network), from_(std::move(from)), to_(std::move(to)) {}

  const std::string& task() const override { return to_; }
  const std::string& address() const override { return to_; }

  void GetStatus(const CallOptions& o, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done d) override {
    Ask<std::vector<tensorflow::DeviceAttributes>>(
        "GetStatus", o, devices, std::move(d),
        [](WorkerControl* t, const CallOptions& at, auto* response, Done done) {
          t->GetStatus(at, response, std::move(done));
        });
  }
  void CreateWorkerSession(const CallOptions& o, const SessionOrder& order, Done d) override {
    Tell("CreateWorkerSession", o, std::move(d),
         [order, network = network_, to = to_](WorkerControl* t, const CallOptions& at, Done done) {
           const std::shared_ptr<Life> life = network->lives_.at(to);
           t->CreateWorkerSession(at, order, [&](const Status& status) {
             if (network->observer.session_opened) {
               network->observer.session_opened(*life, order, status);
             }
             done(status);
           });
         });
  }
  void DeleteWorkerSession(const CallOptions& o, const std::string& handle, Done d) override {
    Tell("DeleteWorkerSession", o, std::move(d),
         [handle](WorkerControl* t, const CallOptions& at, Done done) {
           t->DeleteWorkerSession(at, handle, std::move(done));
         });
  }
  void RenewSessions(const CallOptions& o, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done d) override {
    Ask<std::vector<std::string>>(
        "RenewSessions", o, unknown, std::move(d),
        [names = std::vector<std::string>(handles.begin(), handles.end())](
            WorkerControl* t, const CallOptions& at, auto* response, Done done) {
          t->RenewSessions(at, names, response, std::move(done));
        });
  }
  void FindRun(const CallOptions& o, const std::string& name, const std::string& id,
               FoundRun* found, Done d) override {
    Ask<FoundRun>("FindRun", o, found, std::move(d),
                  [name, id](WorkerControl* t, const CallOptions& at, auto* response, Done done) {
                    t->FindRun(at, name, id, response, std::move(done));
                  });
  }
  void EndRun(const CallOptions& o, const std::string& handle, const RunEnd& end, Done d) override {
    Tell("EndRun", o, std::move(d),
         [handle, end](WorkerControl* t, const CallOptions& at, Done done) {
           t->EndRun(at, handle, end, std::move(done));
         });
  }
  void RegisterGraph(const CallOptions& o, PartOrder order, RegisteredPart* part, Done d) override {
    order.Flatten();
    Ask<RegisteredPart>("RegisterGraph", o, part, std::move(d),
                        [session = order.session_handle, graph = std::move(order.graph_def)](
                            WorkerControl* t, const CallOptions& at, auto* response, Done done) {
                          t->RegisterGraph(at, PartOrder(session, graph), response,
                                           std::move(done));
                        });
  }
  void DeregisterGraph(const CallOptions& o, const std::string& session, const std::string& graph,
                       Done d) override {
    Tell("DeregisterGraph", o, std::move(d),
         [session, graph](WorkerControl* t, const CallOptions& at, Done done) {
           t->DeregisterGraph(at, session, graph, std::move(done));
         });
  }
  void CleanupAll(const CallOptions& o, absl::Span<const std::string> containers, Done d) override {
    Tell("CleanupAll", o, std::move(d),
         [names = std::vector<std::string>(containers.begin(), containers.end())](
             WorkerControl* t, const CallOptions& at, Done done) {
           t->CleanupAll(at, names, std::move(done));
         });
  }

 private:
  static std::shared_ptr<WorkerControl> To(const Call& call) {
    return MakeInProcessControl(call.at->worker, call.to);
  }
  std::shared_ptr<Call> NewCall(const char* method, Done done) {
    auto call = std::make_shared<Call>();
    call->method = method;
    call->from = from_;
    call->to = to_;
    call->done = std::move(done);
    return call;
  }
  // A call with a response.
  template <typename Response, typename Serve>
  void Ask(const char* method, const CallOptions& o, Response* response, Done done, Serve serve) {
    std::shared_ptr<Call> call = NewCall(method, std::move(done));
    call->serve = [network = network_, serve = std::move(serve),
                   response](const std::shared_ptr<Call>& at) {
      auto made = std::make_shared<Response>();
      CallOptions options;
      options.cancellation = &at->at_server;
      serve(To(*at).get(), options, made.get(), [network, at, made, response](const Status& e) {
        network->Answer(at, e, [made, response] { *response = std::move(*made); });
      });
    };
    network_->BeginCall(std::move(call), o);
  }
  // One without.
  template <typename Serve>
  void Tell(const char* method, const CallOptions& o, Done done, Serve serve) {
    std::shared_ptr<Call> call = NewCall(method, std::move(done));
    call->serve = [network = network_, serve = std::move(serve)](const std::shared_ptr<Call>& at) {
      CallOptions options;
      options.cancellation = &at->at_server;
      serve(To(*at).get(), options,
            [network, at](const Status& e) { network->Answer(at, e, [] {}); });
    };
    network_->BeginCall(std::move(call), o);
  }

  SimulatedNetwork* const network_;
  const std::shared_ptr<Life> from_;
  const std::string to_;
};

namespace {

// Of the worker of a life. The executor of a step that blocks its caller waits in ways that a
// simulation does not see.
class PartOfLife : public LocalPart {
 public:
  explicit PartOfLife(std::shared_ptr<SimulatedNetwork::Life> life) : life_(std::move(life)) {}
  void Run(const CallOptions& o, const tensorflow::RunGraphRequest& graph,
           const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send, bool,
           tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
           CallDone done) override {
    MakeLocalPart(life_->worker)
        ->Run(o, graph, step, send, /*block=*/false, response, received, std::move(done));
  }

 private:
  const std::shared_ptr<SimulatedNetwork::Life> life_;
};

// To the worker of the same life.
class OwnWorker : public ForwardingControl {
 public:
  explicit OwnWorker(std::shared_ptr<SimulatedNetwork::Life> life)
      : ForwardingControl(life->task, life->task), life_(std::move(life)) {}

 private:
  std::shared_ptr<WorkerControl> To() const override {
    return MakeInProcessControl(life_->worker, life_->task);
  }
  const std::shared_ptr<SimulatedNetwork::Life> life_;
};

}  // namespace

std::shared_ptr<WorkerControl> SimulatedNetwork::WayTo(const std::shared_ptr<Life>& from,
                                                       absl::string_view task) {
  if (task == from->task) return std::make_shared<OwnWorker>(from);
  return std::make_shared<Way>(this, from, std::string(task));
}

std::shared_ptr<LocalPart> SimulatedNetwork::LocalPartOf(const std::shared_ptr<Life>& life) {
  return std::make_shared<PartOfLife>(life);
}

}  // namespace millrace
