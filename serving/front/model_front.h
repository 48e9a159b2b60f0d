// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_MODEL_FRONT_H_
#define MILLRACE_SERVING_FRONT_MODEL_FRONT_H_

// ModelFront: models and versions by REST, served by nodes that come and go with traffic.
//
//   MR_ASSIGN_OR_RETURN(auto front, ModelFront::Start({.state_dir = "/var/lib/front",
//                                                      .addresses = {"127.0.0.1:8080"},
//                                                      .model_server = "/usr/bin/model_server"}));
//   ...
//   front->Stop(absl::Seconds(30));
//
// What there is is in the state directory (model_catalog.h), which one front has at a time. Nodes
// are in a new private directory below `socket_parent`; those that an earlier front has left are
// ended at the start: nobody knows which requests they have, and the kernel has killed most of them
// with their front.
//
// Predictions run on threads of their versions (node_fleet.h), changes on one of their own: what
// asks for the state never waits for either.
//
// Thread-safety: all methods, from any thread. Lifetime: the destructor is Stop(0).
// Failure: as HttpServer, FileSystem and ModelCatalog; Unavailable when another front has the
// state.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "net/http/http_server.h"
#include "serving/front/front_path.h"
#include "serving/front/model_catalog.h"
#include "serving/front/node_fleet.h"

namespace millrace {

struct ModelFrontOptions {
  std::string state_dir;                     // is made
  std::vector<std::string> addresses;        // as HttpServerOptions
  std::string model_server;                  // the program
  std::vector<std::string> node_flags = {};  // without --token_file and --ssl_config_file
  std::string default_project = "default";
  std::string socket_parent = "/tmp";
  HttpServerOptions http = {};    // without addresses
  NodeFleet::Options nodes = {};  // without program, flags and directory
};

class ModelFront {
 public:
  static StatusOr<std::unique_ptr<ModelFront>> Start(ModelFrontOptions options);
  ~ModelFront();
  ModelFront(const ModelFront&) = delete;
  ModelFront& operator=(const ModelFront&) = delete;

  int port() const { return http_->port(); }
  const std::vector<std::string>& addresses() const { return http_->addresses(); }

  // GET /v2/health/ready is 503 from now on, and before Stop nothing else changes.
  void SetNotReady() { is_ready_ = false; }
  // Requests have `drain` to end; then the nodes.
  void Stop(absl::Duration drain);

 private:
  ModelFront() = default;
  Status OpenState(const ModelFrontOptions& options);
  void Serve(std::unique_ptr<HttpRequest> request);
  // False: it is no probe.
  bool AnswerProbe(HttpRequest* request) const;
  void Change(const FrontTarget& target, std::unique_ptr<HttpRequest> request);
  StatusOr<std::string> Changed(const FrontTarget& target, absl::string_view body);
  StatusOr<std::string> Read(const FrontTarget& target) const;
  void Predict(FrontTarget target, std::unique_ptr<HttpRequest> request);

  std::string default_project_, state_dir_, socket_dir_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<NodeFleet> fleet_;
  std::unique_ptr<ModelCatalog> catalog_;  // after fleet_, which it tells
  std::atomic<int> num_changing_{0};       // relaxed: a bound
  std::atomic<bool> is_ready_{true};       // for probes alone
  std::unique_ptr<IoPool> changes_;        // one thread
  std::unique_ptr<HttpServer> http_;       // the last: its handlers use the others
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_MODEL_FRONT_H_
