// SPDX-License-Identifier: Apache-2.0
#include "runtime/session.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "runtime/engine/kernel_runner.h"

namespace millrace {
namespace {

struct Factories {
  Mutex mu;
  struct Entry {
    SessionFactoryRegistration::Factory factory;
    SessionFactoryRegistration::Reset reset;
  };
  std::map<std::string, Entry> by_scheme ABSL_GUARDED_BY(mu);
};
Factories& AllFactories() {
  static Factories* const factories = new Factories;
  return *factories;
}

StatusOr<Factories::Entry> FindFactory(const std::string& target) {
  Factories& all = AllFactories();
  MutexLock lock(&all.mu);
  std::vector<std::string> known;
  for (const auto& [scheme, entry] : all.by_scheme) {
    if (scheme.empty() ? target.empty() || target == "local" : absl::StartsWith(target, scheme)) {
      return entry;
    }
    known.push_back(absl::StrCat("'", scheme, "'"));
  }
  if (target.empty() || target == "local") {
    return absl::FailedPreconditionError(
        "NewSession: sessions in this process must be linked into the program; link "
        "//runtime:direct_session");
  }
  return absl::NotFoundError(absl::StrCat(
      "NewSession: target '", target, "' must begin with a registered scheme, got none of ",
      known.empty() ? "(none)" : absl::StrJoin(known, ", "),
      absl::StartsWith(target, "grpc://") ? "; link //distributed for grpc://" : ""));
}

}  // namespace

SessionFactoryRegistration::SessionFactoryRegistration(absl::string_view scheme, Factory factory,
                                                       Reset reset) {
  Factories& all = AllFactories();
  MutexLock lock(&all.mu);
  all.by_scheme.insert_or_assign(std::string(scheme),
                                 Factories::Entry{std::move(factory), std::move(reset)});
}

StatusOr<std::unique_ptr<Session>> NewSession(const SessionOptions& options) {
  MR_ASSIGN_OR_RETURN(const Factories::Entry entry, FindFactory(options.target));
  return entry.factory(options);
}

Status ResetTarget(const SessionOptions& options, absl::Span<const std::string> containers) {
  MR_ASSIGN_OR_RETURN(const Factories::Entry entry, FindFactory(options.target));
  if (entry.reset == nullptr) {
    return Unimplemented("ResetTarget: target '", options.target, "' cannot be reset");
  }
  return entry.reset(options, containers);
}

Signature NamesOf(absl::Span<const Feed> feeds, absl::Span<const FetchName> fetches,
                  absl::Span<const FetchName> targets) {
  Signature names;
  for (const Feed& feed : feeds) names.feeds.push_back(feed.name);
  for (const FetchName& fetch : fetches) names.fetches.push_back(fetch.name());
  for (const FetchName& target : targets) names.targets.push_back(target.name());
  return names;
}

Status PreparedStep::RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  for (Tensor& result : results) result = Tensor();
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> made, Run(feeds));
  if (made.size() != results.size()) {
    return InvalidArgument("Run: the signature has ", made.size(), " results, got places for ",
                           results.size());
  }
  std::move(made.begin(), made.end(), results.begin());
  return absl::OkStatus();
}

Status Session::Extend(const Scope& scope) {
  return NoExceptions("Extend", [&]() -> Status {
    MR_RETURN_IF_ERROR(scope.status());
    const auto def = NewMessage<tensorflow::GraphDef>();
    scope.graph()->ToGraphDef(def.get());
    std::vector<std::pair<std::string, std::string>> lines;
    for (const auto& node : scope.graph()->nodes()) {
      if (node != nullptr && !node->built_at().empty()) {
        lines.emplace_back(node->name(), node->built_at());
      }
    }
    AddSourceLines(std::move(lines));
    return Extend(*def);
  });
}

}  // namespace millrace
