// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_loops.h"

#include <microhttpd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "net/http/http_listener.h"
#include "net/http/http_server_options.h"

namespace millrace {
namespace {

// The versions that gRPC's port speaks; GnuTLS by itself still takes 1.0 and 1.1.
constexpr char kTlsPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

// The library knows whole seconds.
unsigned IdleSeconds(absl::Duration time) {
  constexpr int64_t kYear = int64_t{24} * 3'600 * 365;
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1)));
  return static_cast<unsigned>(std::clamp<int64_t>(seconds, 1, kYear));
}

std::shared_ptr<HttpConnection>* ContextOf(MHD_Connection* mhd) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info == nullptr ? nullptr
                         : static_cast<std::shared_ptr<HttpConnection>*>(info->socket_context);
}

const sockaddr* AddressOf(MHD_Connection* mhd) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  return info == nullptr ? nullptr : info->client_addr;
}

MHD_Result ResultOf(bool goes_on) { return goes_on ? MHD_YES : MHD_NO; }

// ---- What the library says of requests; `exchange` is an HttpExchange

void* OnTarget(void* exchange, const char* target, MHD_Connection* mhd) {
  const std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
  if (context != nullptr) {
    static_cast<const HttpExchange*>(exchange)->OnTarget(context->get(), target);
  }
  return nullptr;
}

MHD_Result OnAccess(void* exchange, MHD_Connection* mhd, const char*, const char* method,
                    const char* version, const char* data, size_t* size, void** seen) {
  const HttpExchange* const self = static_cast<const HttpExchange*>(exchange);
  std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
  if (context == nullptr) return MHD_NO;
  // The handler's exceptions end in OnEnd; these are of memory that we lack.
  try {
    if (*seen == nullptr) {
      *seen = context;
      return ResultOf(self->OnHead(*context, method, version));
    }
    if (*size == 0) return ResultOf(self->OnEnd(context->get()));
    return ResultOf(self->OnBody(context->get(), {data, std::exchange(*size, 0)}));
  } catch (...) {
    return MHD_NO;
  }
}

void OnCompleted(void* exchange, MHD_Connection* mhd, void** seen, MHD_RequestTerminationCode) {
  *seen = nullptr;
  const std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
  if (context != nullptr) static_cast<const HttpExchange*>(exchange)->OnCompleted(context->get());
}

}  // namespace

// What the library says while a server starts, for its error.
class HttpLoops::LibraryLog {
 public:
  static void Write(void* log, const char* format, va_list arguments) {
    LibraryLog* const self = static_cast<LibraryLog*>(log);
    MutexLock lock(&self->mu_);
    if (!self->open_) return;
    std::array<char, 512> line;
    const int size = std::vsnprintf(line.data(), line.size(), format, arguments);
    if (size > 0) {
      self->text_.append(line.data(), std::min(static_cast<size_t>(size), line.size() - 1));
    }
  }
  std::string Close() {
    MutexLock lock(&mu_);
    open_ = false;
    while (!text_.empty() && text_.back() == '\n') text_.pop_back();
    return std::exchange(text_, "");
  }

 private:
  Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

// One event loop of the library, with its thread.
struct HttpLoops::Loop {
  // What the library says of connections.
  static void OnConnection(void* loop, MHD_Connection* mhd, void** context,
                           MHD_ConnectionNotificationCode what) {
    Loop* const self = static_cast<Loop*>(loop);
    try {
      if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        self->OnStarted(mhd, context);
      } else {
        self->OnClosed(mhd, context);
      }
    } catch (...) {
      LogError("HTTP server: ", StatusOfException("a connection").message());
    }
  }
  void OnStarted(MHD_Connection* mhd, void** context);
  void OnClosed(MHD_Connection* mhd, void** context);

  const size_t number;
  HttpConnections* const connections;
  HttpLingers* const lingers;
  MHD_Daemon* daemon = nullptr;
};

// Without memory it has no context, and OnAccess ends it.
void HttpLoops::Loop::OnStarted(MHD_Connection* mhd, void** context) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return;
  auto kept = std::make_unique<std::shared_ptr<HttpConnection>>();
  *kept = connections->Begin(mhd, info->connect_fd, SocketAddressText(AddressOf(mhd), true));
  *context = kept.release();
}

void HttpLoops::Loop::OnClosed(MHD_Connection* mhd, void** context) {
  const std::unique_ptr<std::shared_ptr<HttpConnection>> kept(
      static_cast<std::shared_ptr<HttpConnection>*>(*context));
  *context = nullptr;
  if (kept != nullptr) {
    HttpConnection* const c = kept->get();
    const int linger = c->may_be_sending ? c->DuplicateSocket() : -1;
    c->Closed();
    c->reading.reset();
    connections->End(c->id);
    if (linger >= 0) lingers->Add(linger);
  }
  connections->Leave(number, SocketAddressText(AddressOf(mhd), false));
}

HttpLoops::HttpLoops(const HttpServerOptions* options, std::shared_ptr<HttpShared> shared,
                     const HttpExchange* exchange, HttpConnections* connections,
                     HttpLingers* lingers)
    : options_(options),
      shared_(std::move(shared)),
      exchange_(exchange),
      connections_(connections),
      lingers_(lingers),
      log_(std::make_unique<LibraryLog>()) {}

HttpLoops::~HttpLoops() { Stop(); }

Status HttpLoops::Start() {
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET |
                   MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  std::vector<MHD_OptionItem> tls;
  // The library copies nothing of it: the options live longer than the loops.
  const auto text = [](const std::string& pem) { return const_cast<char*>(pem.c_str()); };
  if (shared_->is_tls) {
    flags |= MHD_USE_TLS;
    tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, text(options_->tls_key)});
    tls.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, text(options_->tls_certificate)});
    tls.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kTlsPriorities)});
    if (!options_->client_ca.empty()) {
      tls.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, text(options_->client_ca)});
    }
  }
  tls.push_back({MHD_OPTION_END, 0, nullptr});

  // Half of a connection's pool is its read buffer, the rest is for the list of headers.
  const size_t pool = 2 * static_cast<size_t>(options_->max_header_bytes);
  const int num_loops = NumHttpLoops(*options_);
  void* const exchange = const_cast<HttpExchange*>(exchange_);
  for (int i = 0; i < num_loops; ++i) {
    loops_.push_back(std::make_unique<Loop>(
        Loop{.number = loops_.size(), .connections = connections_, .lingers = lingers_}));
    Loop* const loop = loops_.back().get();
    // Our own bound on connections is lower.
    loop->daemon = MHD_start_daemon(
        flags, 0, nullptr, nullptr, &OnAccess, exchange, MHD_OPTION_EXTERNAL_LOGGER,
        &LibraryLog::Write, log_.get(),  //
        MHD_OPTION_NOTIFY_CONNECTION, &Loop::OnConnection, loop, MHD_OPTION_NOTIFY_COMPLETED,
        &OnCompleted, exchange, MHD_OPTION_URI_LOG_CALLBACK, &OnTarget, exchange,
        MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options_->max_connections) + 1,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool,  //
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, pool / 4, MHD_OPTION_CONNECTION_TIMEOUT,
        IdleSeconds(options_->idle_time),  //
        MHD_OPTION_ARRAY, tls.data(),      //
        MHD_OPTION_END);
    if (loop->daemon == nullptr) {
      loops_.pop_back();
      const std::string why = log_->Close();
      if (shared_->is_tls && i == 0) {
        return InvalidArgument(
            "HTTP server: key, certificate and client_ca must be PEM texts that ",
            "belong together, got: ", why);
      }
      return absl::ResourceExhaustedError(
          absl::StrCat("HTTP server: ", num_loops, " threads must start, got ", i, ": ", why));
    }
  }
  log_->Close();
  return absl::OkStatus();
}

bool HttpLoops::Add(size_t loop, int fd, const sockaddr* address, socklen_t size) {
  return MHD_add_connection(loops_[loop]->daemon, fd, address, size) == MHD_YES;
}

void HttpLoops::Stop() {
  for (const auto& loop : loops_) MHD_stop_daemon(loop->daemon);
  loops_.clear();
}

}  // namespace millrace
