// SPDX-License-Identifier: Apache-2.0
#include "graph/function_library.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "core/did_you_mean.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "graph/function_body.h"
#include "graph/graph.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::FunctionDef;
using tensorflow::FunctionDefLibrary;
using tensorflow::NameAttrList;
using tensorflow::NodeDef;

constexpr absl::string_view kCallingOps[] = {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "Case",
    "For",
    "SymbolicGradient",
};

bool IsTrue(const FunctionDef& def, const char* attr) {
  const auto it = def.attr().find(attr);
  return it != def.attr().end() && it->second.b();
}

// Of two libraries, what a function's gradient is must be one.
Status CheckGradient(const tensorflow::GradientDef& def, absl::string_view known) {
  if (known.empty() || known == def.gradient_func()) return absl::OkStatus();
  return InvalidArgument("Function '", def.function_name(), "': must have one gradient, got '",
                         known, "' and '", def.gradient_func(), "'");
}

}  // namespace

void ForEachFunction(const AttrValue& value, absl::FunctionRef<void(const NameAttrList&)> fn) {
  // Attrs of attrs ...: a list, not recursion.
  std::vector<const AttrValue*> open = {&value};
  const auto visit = [&](const NameAttrList& function) {
    fn(function);
    for (const auto& [name, inner] : function.attr()) open.push_back(&inner);
  };
  while (!open.empty()) {
    const AttrValue* const at = open.back();
    open.pop_back();
    if (at->value_case() == AttrValue::kFunc) visit(at->func());
    if (at->value_case() == AttrValue::kList) {
      for (const NameAttrList& function : at->list().func()) visit(function);
    }
  }
}

bool OnlyCallsFunctions(absl::string_view op) {
  return std::find(std::begin(kCallingOps), std::end(kCallingOps), op) != std::end(kCallingOps);
}

// --- Function ------------------------------------------------------------------------------------

Function::Function(std::shared_ptr<const FunctionDef> def)
    : def_(std::move(def)),
      op_(std::shared_ptr<const tensorflow::OpDef>(def_, &def_->signature())),
      no_inline_(IsTrue(*def_, "_noinline")) {
  op_.shape_fn = [](auto*) { return absl::OkStatus(); };
}

Function::~Function() = default;

const std::string& Function::name() const { return def_->signature().name(); }

// --- FunctionLibrary -----------------------------------------------------------------------------

// Which function calls which, by position in the library.
struct FunctionLibrary::CallGraph {
  std::vector<std::vector<size_t>> callees;
  std::vector<bool> stateful;
  Status recursion;
};

struct FunctionLibrary::Kept {
  struct Entry {
    std::string key;
    std::shared_ptr<const FunctionBody> body;
  };

  Mutex mu;
  std::unique_ptr<const CallGraph> call_graph ABSL_GUARDED_BY(mu);
  std::list<Entry> bodies ABSL_GUARDED_BY(mu);  // the last used first
  HashMap<std::string, std::list<Entry>::iterator> by_key ABSL_GUARDED_BY(mu);
  int64_t nodes ABSL_GUARDED_BY(mu) = 0;
};

FunctionLibrary::FunctionLibrary() : kept_(std::make_unique<Kept>()) {}
FunctionLibrary::~FunctionLibrary() = default;

const std::shared_ptr<const FunctionLibrary>& FunctionLibrary::Empty() {
  static const auto* const empty = new std::shared_ptr<const FunctionLibrary>(
      new FunctionLibrary());  // graphs may be made at exit
  return *empty;
}

StatusOr<std::shared_ptr<const FunctionLibrary>> FunctionLibrary::With(
    const FunctionDefLibrary& more) const {
  if (static_cast<size_t>(more.function_size()) + functions_.size() >
      static_cast<size_t>(kMaxFunctions)) {
    return InvalidArgument("GraphDef: library must have at most ", kMaxFunctions,
                           " functions, got ",
                           static_cast<size_t>(more.function_size()) + functions_.size());
  }
  HashSet<absl::string_view> names;
  std::vector<const FunctionDef*> fresh;
  for (const FunctionDef& def : more.function()) {
    const std::string& name = def.signature().name();
    if (name.empty()) {
      return absl::InvalidArgumentError("Function: signature must have a name, got none");
    }
    const std::string where = absl::StrCat("Function '", name, "'");
    if (!names.insert(name).second) return InvalidArgument(where, ": name must be unique, got two");
    if (const auto known = by_name_.find(name); known == by_name_.end()) {
      fresh.push_back(&def);
    } else if (DeterministicBytes(functions_[known->second]->def()) != DeterministicBytes(def)) {
      return InvalidArgument(
          where, ": must be equal to the graph's function of this name, got another body");
    }
  }
  std::vector<std::pair<std::string, std::string>> gradients;
  HashMap<absl::string_view, absl::string_view> added;
  for (const tensorflow::GradientDef& def : more.gradient()) {
    const absl::string_view known = GradientOf(def.function_name());
    MR_RETURN_IF_ERROR(CheckGradient(def, known));
    const auto [it, is_new] = added.emplace(def.function_name(), def.gradient_func());
    MR_RETURN_IF_ERROR(CheckGradient(def, it->second));
    if (known.empty() && is_new) gradients.emplace_back(def.function_name(), def.gradient_func());
  }
  if (fresh.empty() && gradients.empty()) return shared_from_this();

  std::shared_ptr<FunctionLibrary> library(new FunctionLibrary());
  library->functions_ = functions_;
  library->functions_.reserve(functions_.size() + fresh.size());
  for (const FunctionDef* def : fresh) {
    const auto copy = NewMessage<FunctionDef>();
    *copy = *def;
    library->functions_.push_back(std::make_shared<const Function>(copy));
  }
  library->gradients_ = gradients_;
  library->gradients_.insert(library->gradients_.end(), gradients.begin(), gradients.end());
  library->Index();
  return std::shared_ptr<const FunctionLibrary>(std::move(library));
}

std::shared_ptr<const Function> FunctionLibrary::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : functions_[it->second];
}

StatusOr<std::shared_ptr<const Function>> FunctionLibrary::Get(absl::string_view name) const {
  if (auto function = Find(name); function != nullptr) return function;
  DidYouMean best(name);
  for (const auto& function : functions_) best.Consider(function->name());
  return absl::NotFoundError(
      absl::StrCat("Function '", name, "': must be in the graph's library, which has ",
                   functions_.size(), " functions, got none of this name", best.Hint()));
}

absl::string_view FunctionLibrary::GradientOf(absl::string_view name) const {
  const auto it = gradient_of_.find(name);
  return it == gradient_of_.end() ? absl::string_view() : gradients_[it->second].second;
}

void FunctionLibrary::Index() {
  by_name_.reserve(functions_.size());
  for (size_t i = 0; i < functions_.size(); ++i) by_name_.emplace(functions_[i]->name(), i);
  for (size_t i = 0; i < gradients_.size(); ++i) gradient_of_.emplace(gradients_[i].first, i);
}

void FunctionLibrary::WriteTo(FunctionDefLibrary* def) const {
  for (const auto& function : functions_) *def->add_function() = function->def();
  for (const auto& [function, gradient] : gradients_) {
    tensorflow::GradientDef* const entry = def->add_gradient();
    entry->set_function_name(function);
    entry->set_gradient_func(gradient);
  }
}

// --- Which function calls which
// ------------------------------------------------------------------------------

namespace {

struct Calls {
  std::vector<size_t> callees;  // positions, each once
  bool stateful = false;        // without what they do
};

Calls CallsOf(const FunctionDef& function, const HashMap<absl::string_view, size_t>& by_name) {
  Calls calls;
  HashSet<size_t> callees;
  const auto add = [&](absl::string_view name) {
    const auto it = by_name.find(name);
    if (it != by_name.end() && callees.insert(it->second).second) {
      calls.callees.push_back(it->second);
    }
  };
  for (const NodeDef& node : function.node_def()) {
    add(node.op());
    bool is_parameter = false;  // calls a function that its caller names
    for (const auto& [name, value] : node.attr()) {
      is_parameter |= value.value_case() == AttrValue::kPlaceholder;
      ForEachFunction(value, [&](const NameAttrList& callee) { add(callee.name()); });
    }
    if (OnlyCallsFunctions(node.op())) {
      calls.stateful |= is_parameter;
    } else if (!by_name.contains(node.op())) {
      const OpEntry* const entry = LookUpOp(node.op());
      calls.stateful |= entry == nullptr || entry->def.is_stateful();
    }
  }
  return calls;
}

}  // namespace

const FunctionLibrary::CallGraph& FunctionLibrary::call_graph() const {
  MutexLock lock(&kept_->mu);
  if (kept_->call_graph != nullptr) return *kept_->call_graph;
  auto graph = std::make_unique<CallGraph>();
  const size_t n = functions_.size();
  graph->callees.resize(n);
  graph->stateful.assign(n, false);
  for (size_t i = 0; i < n; ++i) {
    Calls calls = CallsOf(functions_[i]->def(), by_name_);
    graph->callees[i] = std::move(calls.callees);
    graph->stateful[i] = calls.stateful;
  }

  Dependencies dependencies;
  for (size_t i = 0; i < n; ++i) {
    for (const size_t callee : graph->callees[i]) dependencies.AddInput(static_cast<int>(callee));
    dependencies.EndNode();
  }
  const StatusOr<std::vector<int>> order =
      dependencies.Order([&](int i) { return functions_[static_cast<size_t>(i)]->name(); });
  if (order.ok()) {
    for (const int i : *order) {  // callees first
      const size_t caller = static_cast<size_t>(i);
      for (const size_t callee : graph->callees[caller]) {
        if (graph->stateful[callee]) graph->stateful[caller] = true;
      }
    }
  } else {
    const absl::string_view text = order.status().message();
    graph->recursion = InvalidArgument("Function: must not call itself, got ",
                                       text.substr(text.find("the cycle")));
    graph->stateful.assign(n, true);
  }
  kept_->call_graph = std::move(graph);
  return *kept_->call_graph;
}

Status FunctionLibrary::CheckNoRecursion() const { return call_graph().recursion; }

// A graph's builder asks about a function or two of each library that it makes: for these, all
// functions need not be looked at.
bool FunctionLibrary::IsStateful(const Function& function) const {
  const auto it = by_name_.find(function.name());
  if (it == by_name_.end()) return true;
  bool by_graph = false;
  {
    MutexLock lock(&kept_->mu);
    by_graph = kept_->call_graph != nullptr;
  }
  constexpr size_t kMostVisited = 64;
  HashSet<size_t> visited = {it->second};
  std::vector<size_t> open = {it->second};
  while (!open.empty() && !by_graph) {
    const Calls calls = CallsOf(functions_[open.back()]->def(), by_name_);
    open.pop_back();
    if (calls.stateful) return true;
    for (const size_t callee : calls.callees) {
      by_graph |= !visited.insert(callee).second;  // perhaps it reaches itself
      open.push_back(callee);
    }
    by_graph |= visited.size() > kMostVisited;
  }
  return by_graph && call_graph().stateful[it->second];
}

std::shared_ptr<const FunctionLibrary> FunctionLibrary::ReachableFrom(const Graph& graph) const {
  if (empty()) return shared_from_this();
  std::vector<bool> reached(functions_.size(), false);
  std::vector<size_t> open;
  const auto reach = [&](size_t function) {
    if (reached[function]) return;
    reached[function] = true;
    open.push_back(function);
  };
  const auto reach_name = [&](absl::string_view name) {
    if (const auto it = by_name_.find(name); it != by_name_.end()) reach(it->second);
  };
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    reach_name(node->op());
    for (const auto& [name, value] : node->def().attr()) {
      ForEachFunction(value, [&](const NameAttrList& function) { reach_name(function.name()); });
    }
  }
  size_t count = 0;
  while (!open.empty()) {
    const size_t function = open.back();
    open.pop_back();
    ++count;
    for (const size_t callee : call_graph().callees[function]) reach(callee);
    reach_name(GradientOf(functions_[function]->name()));
  }
  if (count == 0) return Empty();
  if (count == functions_.size()) return shared_from_this();
  std::shared_ptr<FunctionLibrary> library(new FunctionLibrary());
  for (size_t i = 0; i < functions_.size(); ++i) {
    if (reached[i]) library->functions_.push_back(functions_[i]);
  }
  for (const auto& gradient : gradients_) {
    const auto function = by_name_.find(gradient.first);
    if (function != by_name_.end() && reached[function->second]) {
      library->gradients_.push_back(gradient);
    }
  }
  library->Index();
  return std::shared_ptr<const FunctionLibrary>(std::move(library));
}

// --- Bodies --------------------------------------------------------------------------------------

StatusOr<std::shared_ptr<const FunctionBody>> FunctionLibrary::Body(
    const NameAttrList& call) const {
  const std::string key = DeterministicBytes(call);
  {
    MutexLock lock(&kept_->mu);
    if (const auto it = kept_->by_key.find(key); it != kept_->by_key.end()) {
      kept_->bodies.splice(kept_->bodies.begin(), kept_->bodies, it->second);
      return it->second->body;
    }
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionBody> body, MakeFunctionBody(*this, call));
  std::list<Kept::Entry> fresh, dropped;  // freed without the lock
  fresh.push_back({key, body});
  MutexLock lock(&kept_->mu);
  const auto [it, is_new] = kept_->by_key.emplace(key, fresh.begin());
  if (!is_new) return it->second->body;  // somebody else was faster
  kept_->bodies.splice(kept_->bodies.begin(), fresh);
  kept_->nodes += body->graph->num_nodes();
  while (kept_->nodes > kMaxKeptBodyNodes && kept_->bodies.size() > 1) {
    const auto last = std::prev(kept_->bodies.end());
    kept_->nodes -= last->body->graph->num_nodes();
    kept_->by_key.erase(last->key);
    dropped.splice(dropped.begin(), kept_->bodies, last);
  }
  return body;
}

}  // namespace millrace
