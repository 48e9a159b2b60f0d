// SPDX-License-Identifier: Apache-2.0
#include "tools/saved_model_check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "formats/tensor_json.h"
#include "graph/attr.h"
#include "graph/function_body.h"
#include "graph/function_library.h"
#include "graph/graph_def.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/verify.h"
#include "nlohmann/json.hpp"
#include "proto/op_def.pb.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "tools/python_error.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;
using tensorflow::AttrValue;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;

// More names are counted, not listed.
constexpr size_t kMaxNames = 3;
constexpr char kAddingAnOp[] = "docs/adding_an_op.md";

const char* KindName(OpProblem::Kind kind) {
  switch (kind) {
    case OpProblem::Kind::kUnknownOp:
      return "unknown_op";
    case OpProblem::Kind::kBadAttr:
      return "bad_attr";
    case OpProblem::Kind::kNoKernel:
      return "no_kernel";
  }
  return "";
}

// The functions that an attr names.
void AddFunctionsOf(const AttrValue& attr, int depth, std::set<std::string>* names) {
  const auto add = [&](const tensorflow::NameAttrList& function) {
    names->insert(function.name());
    if (depth == kMaxAttrNesting) return;
    for (const auto& [name, value] : function.attr()) AddFunctionsOf(value, depth + 1, names);
  };
  if (attr.has_func()) add(attr.func());
  for (const auto& function : attr.list().func()) add(function);
}

// An attr whose value a function's caller gives.
bool HasPlaceholder(const NodeDef& node) {
  return std::any_of(node.attr().begin(), node.attr().end(), [](const auto& attr) {
    return attr.second.value_case() == AttrValue::kPlaceholder;
  });
}

// "T=half, Tidx=int32": the attrs by which kernels are chosen.
std::string TypesText(const NodeDef& node, const tensorflow::OpDef& op) {
  std::vector<std::string> parts;
  for (const auto& attr : op.attr()) {
    const auto found = node.attr().find(attr.name());
    if (found == node.attr().end()) continue;
    if (attr.type() == "type") {
      parts.push_back(
          absl::StrCat(attr.name(), "=", DTypeName(static_cast<DType>(found->second.type()))));
    } else if (attr.type() == "list(type)") {
      const std::string types =
          absl::StrJoin(found->second.list().type(), ", ", [](std::string* out, int type) {
            absl::StrAppend(out, DTypeName(static_cast<DType>(type)));
          });
      parts.push_back(absl::StrCat(attr.name(), "=[", types, "]"));
    }
  }
  return absl::StrJoin(parts, ", ");
}

// "(x: T, y: T) -> z: T" of an op that the model describes.
std::string SignatureText(const tensorflow::OpDef& op) {
  const auto args = [](const auto& list) {
    return absl::StrJoin(list, ", ", [](std::string* out, const auto& arg) {
      const std::string type = !arg.type_list_attr().empty() ? arg.type_list_attr()
                               : !arg.type_attr().empty()
                                   ? arg.type_attr()
                                   : DTypeName(static_cast<DType>(arg.type()));
      absl::StrAppend(out, arg.name(), ": ", arg.is_ref() ? "ref " : "",
                      arg.number_attr().empty() ? "" : absl::StrCat(arg.number_attr(), " * "),
                      type);
    });
  };
  return absl::StrCat("(", args(op.input_arg()), ") -> (", args(op.output_arg()), ")");
}

// Functions by their types alone: enough to build the kernels that call them.
class FunctionSignatures : public FunctionRunner {
 public:
  StatusOr<CalledFunction*> Find(const tensorflow::NameAttrList& function,
                                 const Site& site) override {
    StatusOr<std::shared_ptr<const FunctionBody>> body = site.library->Body(function);
    MR_RETURN_IF_ERROR(body.status());
    found_.push_back(std::make_unique<Signature>(*std::move(body)));
    return found_.back().get();
  }

 private:
  class Signature : public CalledFunction {
   public:
    explicit Signature(std::shared_ptr<const FunctionBody> body) : body_(std::move(body)) {}
    absl::Span<const DType> argument_types() const override { return body_->argument_types; }
    absl::Span<const DType> result_types() const override { return body_->result_types; }
    void Run(const StepContext&, absl::Span<Tensor>, absl::Span<Tensor>,
             DoneCallback done) override {
      done(Unimplemented("nothing is run here"));
    }
    std::shared_ptr<CalledFunction> Share() override { return std::make_shared<Signature>(body_); }

   private:
    const std::shared_ptr<const FunctionBody> body_;
  };
  std::vector<std::unique_ptr<CalledFunction>> found_;
};

// Looks at the nodes of one meta graph.
class Checker {
 public:
  explicit Checker(const MetaGraphDef& meta) : meta_(meta) {
    for (const auto& op : meta.meta_info_def().stripped_op_list().op()) theirs_[op.name()] = &op;
    for (const auto& function : meta.graph_def().library().function()) {
      functions_[function.signature().name()] = &function;
    }
    // A library that is none is an error of loading.
    if (auto library = FunctionLibrary::Empty()->With(meta.graph_def().library()); library.ok()) {
      library_ = *std::move(library);
    }
    bodies_.set_functions(library_.get());
    device_.name = "/job:localhost/replica:0/task:0/device:CPU:0";
    device_.type = "CPU";
    device_.incarnation = 1;
    device_.resources = std::make_unique<ResourceManager>(device_.name);
  }

  void LookAtAll(ModelCheck* check) {
    const auto& graph = meta_.graph_def();
    for (int i = 0; i < graph.node_size(); ++i) {
      LookAt(graph.node(i), /*function=*/"", &of_node_[i]);
      ++check->num_nodes;
    }
    for (const auto& [name, function] : functions_) {
      for (const NodeDef& node : function->node_def()) {
        LookAt(node, name, &of_function_[name]);
        ++check->num_nodes;
      }
      ++check->num_functions;
    }
    // In the order of ops; positions so far are in the order of nodes.
    std::vector<size_t> order(problems_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto key = [&](size_t i) {
      return std::tie(problems_[i].op, problems_[i].kind, problems_[i].what);
    };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
    position_.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      position_[order[i]] = i;
      check->problems.push_back(std::move(problems_[order[i]]));
    }
  }

  // What stands in the way of a step.
  CheckedTask TaskOf(std::string name, const std::vector<std::string>& fetches,
                     const std::vector<std::string>& feeds) const {
    CheckedTask task;
    task.name = std::move(name);
    std::set<size_t> found;
    std::set<std::string> called;
    for (const std::string& fetch : fetches) {
      const StatusOr<std::vector<int>> needed = NeededNodes(meta_.graph_def(), {fetch}, feeds);
      if (!needed.ok()) {
        task.other.emplace_back(needed.status().message());
        continue;
      }
      for (const int position : *needed) {
        AddProblems(of_node_, position, &found);
        AddCalled(meta_.graph_def().node(position), &called);
      }
    }
    std::vector<std::string> open(called.begin(), called.end());
    while (!open.empty()) {
      const std::string function = open.back();
      open.pop_back();
      AddProblems(of_function_, function, &found);
      std::set<std::string> more;
      for (const NodeDef& node : functions_.at(function)->node_def()) AddCalled(node, &more);
      for (const std::string& one : more) {
        if (called.insert(one).second) open.push_back(one);
      }
    }
    task.problems.assign(found.begin(), found.end());
    return task;
  }

 private:
  template <typename Key>
  void AddProblems(const std::map<Key, std::set<size_t>>& of, const Key& key,
                   std::set<size_t>* found) const {
    const auto at = of.find(key);
    if (at == of.end()) return;
    for (const size_t problem : at->second) found->insert(position_[problem]);
  }

  // Functions of the library that the node calls or is given.
  void AddCalled(const NodeDef& node, std::set<std::string>* called) const {
    std::set<std::string> names = {node.op()};
    for (const auto& [name, value] : node.attr()) AddFunctionsOf(value, 0, &names);
    for (const std::string& name : names) {
      if (functions_.count(name) > 0) called->insert(name);
    }
  }

  // Returns the problem's position in problems_.
  size_t Report(const NodeDef& node, const std::string& function, OpProblem::Kind kind,
                std::string what, std::string needs, std::set<size_t>* of) {
    const auto [at, is_new] =
        known_.try_emplace(std::make_tuple(node.op(), kind, what), problems_.size());
    if (is_new) {
      OpProblem& problem = problems_.emplace_back();
      problem.op = node.op();
      problem.kind = kind;
      problem.what = std::move(what);
      problem.needs = std::move(needs);
    }
    problems_[at->second].nodes.push_back(
        function.empty() ? node.name() : absl::StrCat(node.name(), " in function ", function));
    of->insert(at->second);
    return at->second;
  }

  // A message without the name of the node that it begins with.
  static std::string WithoutNode(const NodeDef& node, absl::string_view message) {
    absl::ConsumePrefix(&message, absl::StrCat(node.op(), " '", node.name(), "': "));
    absl::ConsumePrefix(&message, absl::StrCat("NodeDef '", node.name(), "': "));
    return std::string(message);
  }

  void LookAt(const NodeDef& original, const std::string& function, std::set<size_t>* of) {
    const OpEntry* const entry = LookUpOp(original.op());
    if (entry == nullptr) {
      // A call of the model's own: what its nodes need is looked at with the function.
      if (functions_.count(original.op()) > 0) return;
      const auto theirs = theirs_.find(original.op());
      Report(original, function, OpProblem::Kind::kUnknownOp, "the op kind is not known here",
             absl::StrCat(
                 "an op and its kernel (", kAddingAnOp, "), or their library (--op_library)",
                 theirs == theirs_.end() ? "" : absl::StrCat(": ", SignatureText(*theirs->second))),
             of);
      return;
    }
    const auto bad_attr = [&](const Status& status) {
      return Report(original, function, OpProblem::Kind::kBadAttr,
                    WithoutNode(original, status.message()), "another value of the attr", of);
    };
    // No graph with the node is taken up, whether anything needs it or not.
    const auto illegal = [&](const Status& status) {
      problems_[bad_attr(status)].stops_loading = true;
    };

    // As the loader: attrs that only the producer's op has may have their defaults.
    NodeDef node = original;
    if (const auto theirs = theirs_.find(node.op()); theirs != theirs_.end()) {
      const Status status = RemoveUnknownDefaultAttrs(*theirs->second, &node);
      if (!status.ok()) return illegal(status);
    }
    const auto no_kernel = [&](const std::string& types) {
      const std::string known = DescribeKernels(node.op());
      Report(original, function, OpProblem::Kind::kNoKernel,
             absl::StrCat("no kernel", types.empty() ? "" : " for ", types),
             absl::StrCat("a kernel (", kAddingAnOp, "); there ",
                          known.empty() ? "is none" : absl::StrCat("are ", known)),
             of);
    };
    if (HasPlaceholder(node)) {
      if (!HasAnyKernel(node.op())) no_kernel("");
      return;
    }
    const auto body =
        bodies_.Make(node, /*taken=*/nullptr, [](const NodeDef&) { return absl::OkStatus(); });
    if (!body.ok()) return illegal(body.status());
    const NodeDef& def = (*body)->def();
    if (!HasKernel(def, device_.type)) return no_kernel(TypesText(def, entry->def));
    // That a function has an op which nobody knows is said of that op's node.
    const Status status = TryKernel(node.name(), **body);
    if (!status.ok() && !absl::IsUnimplemented(status)) bad_attr(status);
  }

  // A kernel may refuse what its op allows.
  Status TryKernel(const std::string& name, const NodeBody& body) {
    const NodeAttrs attrs(name, &body.def(), body.value());
    KernelConstruction construction(attrs, &body.op_entry()->def, &device_, body.input_types(),
                                    body.output_types(), meta_.graph_def().versions().producer());
    construction.set_functions(&signatures_, library_);
    try {
      return MakeKernel(&construction).status();
    } catch (const std::exception& e) {
      return Internal("building the kernel threw: ", e.what());
    }
  }

  const MetaGraphDef& meta_;
  std::map<std::string, const tensorflow::OpDef*> theirs_;
  std::map<std::string, const tensorflow::FunctionDef*> functions_;
  std::shared_ptr<const FunctionLibrary> library_ = FunctionLibrary::Empty();
  FunctionSignatures signatures_;
  Device device_;
  NodeBodies bodies_;

  std::vector<OpProblem> problems_;
  std::map<std::tuple<std::string, OpProblem::Kind, std::string>, size_t> known_;
  // Node, function -> problems.
  std::map<int, std::set<size_t>> of_node_;
  std::map<std::string, std::set<size_t>> of_function_;
  std::vector<size_t> position_;  // of problems_ in the sorted list
};

std::vector<std::string> TensorsOfAll(
    const google::protobuf::Map<std::string, tensorflow::TensorInfo>& infos) {
  std::set<std::string> tensors;
  for (const auto& [key, info] : infos) {
    for (const std::string& tensor : TensorsOf(info)) tensors.insert(tensor);
  }
  return {tensors.begin(), tensors.end()};
}

std::vector<std::string> NamesOf(const std::vector<Feed>& feeds) {
  std::vector<std::string> names;
  for (const Feed& feed : feeds) names.push_back(feed.name.name());
  return names;
}

// What the nodes alone do not tell (devices, say): the step is made, and not run. Nothing to add
// where something is wrong already, or where nothing is computed.
void Prepare(Session* session, const std::vector<std::string>& feeds,
             const std::vector<std::string>& fetches, const std::vector<std::string>& targets,
             CheckedTask* task) {
  if (session == nullptr || !task->runnable() || (fetches.empty() && targets.empty())) return;
  const auto names = [](const std::vector<std::string>& texts) {
    return std::vector<FetchName>(texts.begin(), texts.end());
  };
  const Status status = session->Prepare(names(feeds), names(fetches), names(targets)).status();
  if (!status.ok()) task->other.emplace_back(status.message());
}

// The steps of loading, and the session that they open: null when the graph cannot be taken up.
CheckedTask LoadingOf(FileSystem* fs, const std::string& directory, MetaGraphDef meta,
                      const Checker& checker, std::vector<OpProblem>* problems,
                      std::unique_ptr<Session>* session) {
  CheckedTask loading;
  loading.name = "loading";
  const LoadPlan plan = PlanLoading(fs, directory, meta);
  for (const Status& error : plan.errors) loading.other.emplace_back(error.message());
  StatusOr<std::unique_ptr<Session>> opened = OpenMetaGraph(ToolSessionOptions(), directory, &meta);
  // The answer decides, not what was found about nodes.
  for (size_t i = 0; i < problems->size(); ++i) {
    OpProblem& problem = (*problems)[i];
    problem.stops_loading = problem.stops_loading && !opened.ok();
    if (problem.stops_loading) loading.problems.push_back(i);
  }
  if (opened.ok()) {
    *session = *std::move(opened);
  } else {
    loading.other.emplace_back(opened.status().message());
  }
  for (const std::optional<LoadPlan::Step>& step : {plan.restore, plan.init}) {
    if (!step) continue;
    CheckedTask task = checker.TaskOf("", {step->target}, NamesOf(step->feeds));
    Prepare(session->get(), NamesOf(step->feeds), {}, {step->target}, &task);
    loading.problems.insert(loading.problems.end(), task.problems.begin(), task.problems.end());
    loading.other.insert(loading.other.end(), task.other.begin(), task.other.end());
  }
  std::sort(loading.problems.begin(), loading.problems.end());
  loading.problems.erase(std::unique(loading.problems.begin(), loading.problems.end()),
                         loading.problems.end());
  return loading;
}

std::string NamesText(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNames);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

std::string Count(size_t n, absl::string_view what) {
  return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
}

std::string TagsText(const std::vector<std::string>& tags) {
  return absl::StrCat("'", absl::StrJoin(tags, ", "), "'");
}

}  // namespace

bool ModelCheck::runnable() const {
  return std::all_of(tasks.begin(), tasks.end(),
                     [](const CheckedTask& task) { return task.runnable(); });
}

StatusOr<ModelCheck> CheckModel(FileSystem* fs, const std::string& directory,
                                const MetaGraphDef& meta, const std::string* signature_key) {
  ModelCheck check;
  check.tags = {meta.meta_info_def().tags().begin(), meta.meta_info_def().tags().end()};
  std::vector<std::string> keys;
  if (signature_key != nullptr) {
    MR_RETURN_IF_ERROR(FindSignature(meta, *signature_key).status());
    keys.push_back(*signature_key);
  } else {
    for (const auto& [key, signature] : meta.signature_def()) {
      if (key != kInitOpSignature) keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end());
  }

  Checker checker(meta);
  checker.LookAtAll(&check);
  std::unique_ptr<Session> session;
  check.tasks.push_back(LoadingOf(fs, directory, meta, checker, &check.problems, &session));
  for (const std::string& key : keys) {
    const tensorflow::SignatureDef& signature = meta.signature_def().at(key);
    const std::vector<std::string> inputs = TensorsOfAll(signature.inputs());
    const std::vector<std::string> outputs = TensorsOfAll(signature.outputs());
    CheckedTask task = checker.TaskOf(absl::StrCat("signature '", key, "'"), outputs, inputs);
    Prepare(session.get(), inputs, outputs, {}, &task);
    check.tasks.push_back(std::move(task));
  }
  return check;
}

std::string CheckText(const ModelCheck& check) {
  std::string out = absl::StrCat(
      "MetaGraphDef with tag-set ", TagsText(check.tags), ": ", Count(check.num_nodes, "node"),
      check.num_functions == 0 ? "" : absl::StrCat(", ", Count(check.num_functions, "function")),
      "\n");
  for (size_t i = 0; i < check.problems.size(); ++i) {
    const OpProblem& problem = check.problems[i];
    const bool needed =
        std::any_of(check.tasks.begin(), check.tasks.end(), [i](const CheckedTask& task) {
          return std::find(task.problems.begin(), task.problems.end(), i) != task.problems.end();
        });
    absl::StrAppend(&out, "  ", problem.op, ": ", problem.what, "\n    ",
                    Count(problem.nodes.size(), "node"), ": ", NamesText(problem.nodes),
                    problem.stops_loading ? " (no graph with them is loaded)"
                    : needed              ? ""
                                          : " (nothing that was asked for needs them)",
                    "\n    needed: ", problem.needs, "\n");
  }
  size_t stopped = 0;
  for (const CheckedTask& task : check.tasks) {
    absl::StrAppend(&out, "  ", task.name, ": ");
    if (task.runnable()) {
      absl::StrAppend(&out, "ok\n");
      continue;
    }
    ++stopped;
    std::set<std::string> ops;
    for (const size_t i : task.problems) {
      // Loading says in its own words what it does not take up.
      if (!check.problems[i].stops_loading || task.other.empty()) ops.insert(check.problems[i].op);
    }
    std::vector<std::string> reasons = task.other;
    if (!ops.empty()) reasons.push_back(absl::StrCat("needs ", absl::StrJoin(ops, ", ")));
    absl::StrAppend(&out, absl::StrJoin(reasons, "; "), "\n");
  }
  if (check.runnable()) {
    absl::StrAppend(&out, "runnable\n");
  } else {
    absl::StrAppend(&out, "not runnable: ", stopped, " of ", check.tasks.size(),
                    " (loading and signatures) cannot be done\n");
  }
  return out;
}

std::string CheckJson(const std::vector<ModelCheck>& checks) {
  ordered_json json;
  json["runnable"] = std::all_of(checks.begin(), checks.end(),
                                 [](const ModelCheck& check) { return check.runnable(); });
  json["meta_graphs"] = ordered_json::array();
  for (const ModelCheck& check : checks) {
    ordered_json one;
    one["tags"] = check.tags;
    one["runnable"] = check.runnable();
    one["nodes"] = check.num_nodes;
    one["functions"] = check.num_functions;
    one["problems"] = ordered_json::array();
    for (const OpProblem& problem : check.problems) {
      one["problems"].push_back({{"op", problem.op},
                                 {"kind", KindName(problem.kind)},
                                 {"what", problem.what},
                                 {"needs", problem.needs},
                                 {"count", problem.nodes.size()},
                                 {"nodes", problem.nodes}});
    }
    one["tasks"] = ordered_json::array();
    for (const CheckedTask& task : check.tasks) {
      one["tasks"].push_back({{"name", task.name},
                              {"runnable", task.runnable()},
                              {"problems", task.problems},
                              {"errors", task.other}});
    }
    json["meta_graphs"].push_back(std::move(one));
  }
  return JsonText(json);
}

}  // namespace millrace
