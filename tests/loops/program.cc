// SPDX-License-Identifier: Apache-2.0
#include "tests/loops/program.h"

#include <algorithm>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

namespace millrace::loops {
namespace {

// --- Making one ----------------------------------------------------------------------------------

class Maker {
 public:
  Maker(uint64_t seed, const ProgramOptions& options) : random_(seed), options_(options) {}

  Program Make() {
    const int functions = options_.max_functions > 0 ? 1 + Below(options_.max_functions) : 0;
    for (int i = 0; i < functions; ++i) MakeFunction();
    all_needed_ = options_.all_needed;
    std::vector<int> visible, here;
    for (int i = 0; i < 3; ++i) program_.statements.push_back(Constant(&visible, &here));
    int budget = options_.size;
    int last = Fill(&program_.statements, &visible, &here, 0, 0, &budget);
    for (int i = 0; i < 3; ++i) program_.outputs.push_back(OrOneOf(&last, visible));
    return std::move(program_);
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(double p) { return static_cast<double>(random_() % 10'000) < p * 10'000; }
  int OneOf(const std::vector<int>& of) {
    const int one = of[static_cast<size_t>(Below(static_cast<int>(of.size())))];
    read_.insert(one);
    return one;
  }
  // *first, once, if there is one.
  int OrOneOf(int* first, const std::vector<int>& of) {
    return *first >= 0 ? std::exchange(*first, -1) : OneOf(of);
  }
  int NewVariable(std::vector<int>* visible) {
    visible->push_back(next_variable_);
    return next_variable_++;
  }
  std::string NewName(const char* what) { return what + std::to_string(next_name_++); }

  Statement Constant(std::vector<int>* visible, std::vector<int>* here) {
    Statement s;
    s.kind = !is_pure_ && Chance(0.5) ? Kind::kConstant : Kind::kLiteral;
    s.name = NewName(s.kind == Kind::kConstant ? "constant" : "literal");
    s.result = NewVariable(visible);
    here->push_back(s.result);
    return s;
  }

  // `here`: set by ops of this block, which run exactly where this one runs.
  void MaybeAfter(const std::vector<int>& here, Statement* s) {
    if (here.empty() || !Chance(0.2)) return;
    s->after = here[static_cast<size_t>(Below(static_cast<int>(here.size())))];
  }

  Statement Op(std::vector<int>* visible, std::vector<int>* here) {
    Statement s;
    if (is_pure_ || Chance(0.35)) {
      s.name = NewName("pure");
      s.kind = Kind::kPure;
      s.inputs = {OneOf(*visible), OneOf(*visible)};
      s.result = NewVariable(visible);
      here->push_back(s.result);
      return s;
    }
    s.name = NewName("op");
    const int kind = Below(10);
    s.kind = kind < 6 ? Kind::kPlain : kind < 8 ? Kind::kAnswersNow : Kind::kAnswersLate;
    for (int n = 1 + Below(3); n > 0; --n) s.inputs.push_back(OneOf(*visible));
    MaybeAfter(*here, &s);
    if (Chance(options_.failure_chance)) s.fails_in = static_cast<uint32_t>(1 + Below(20));
    s.result = NewVariable(visible);
    here->push_back(s.result);
    return s;
  }

  Statement If(std::vector<int>* visible, int depth, int* budget) {
    Statement s;
    s.what = Statement::What::kIf;
    s.name = NewName("if");
    s.inputs = {OneOf(*visible), OneOf(*visible)};
    std::vector<int> on_true = *visible, on_false = *visible, here_true, here_false;
    const size_t before = visible->size();
    int last_true = Fill(&s.body, &on_true, &here_true, before, depth + 1, budget);
    int last_false = Fill(&s.otherwise, &on_false, &here_false, before, depth + 1, budget);
    for (int n = 1 + Below(3); n > 0; --n) {
      s.body_results.push_back(OrOneOf(&last_true, on_true));
      s.otherwise_results.push_back(OrOneOf(&last_false, on_false));
      s.results.push_back(NewVariable(visible));
    }
    return s;
  }

  Statement While(std::vector<int>* visible, int depth, int* budget) {
    Statement s;
    s.what = Statement::What::kWhile;
    s.name = NewName("while");
    s.inputs = {OneOf(*visible)};
    s.parallel_iterations = 1 + Below(4);
    std::vector<int> inside = *visible, here;
    s.count = NewVariable(&inside);
    for (int n = 1 + Below(3); n > 0; --n) {
      s.initial.push_back(OneOf(*visible));
      s.inside.push_back(NewVariable(&inside));
    }
    int last = Fill(&s.body, &inside, &here, inside.size(), depth + 1, budget);
    for (size_t i = 0; i < s.initial.size(); ++i) {
      s.next.push_back(OrOneOf(&last, inside));
      s.results.push_back(NewVariable(visible));
    }
    return s;
  }

  // Of the functions that there are so far; nothing where none fits.
  bool Call(std::vector<Statement>* block, std::vector<int>* visible, std::vector<int>* here) {
    std::vector<int> callable;
    for (size_t f = 0; f < program_.functions.size(); ++f) {
      if (!is_pure_ || program_.functions[f].is_pure) callable.push_back(static_cast<int>(f));
    }
    if (callable.empty()) return false;
    const auto callee = [&] {
      return callable[static_cast<size_t>(Below(static_cast<int>(callable.size())))];
    };
    static constexpr struct {
      Statement::What what;
      const char* name;
      size_t own_inputs;
    } kKinds[] = {{Statement::What::kCall, "call", 0},
                  {Statement::What::kCallIf, "either", 2},
                  {Statement::What::kCallCase, "case", 1},
                  {Statement::What::kCallWhile, "loop", 1},
                  {Statement::What::kCallFor, "for", 1}};
    const auto& kind = kKinds[Below(is_pure_ ? 2 : 5)];
    const bool loops =
        kind.what == Statement::What::kCallWhile || kind.what == Statement::What::kCallFor;
    Statement s;
    s.what = kind.what;
    s.name = NewName(kind.name);
    const size_t inputs = kind.own_inputs + (loops ? kResults : kArguments);
    for (size_t i = 0; i < inputs; ++i) s.inputs.push_back(OneOf(*visible));
    const int branches = kind.what == Statement::What::kCallIf     ? 2
                         : kind.what == Statement::What::kCallCase ? 1 + Below(4)
                                                                   : 1;
    for (int i = 0; i < branches; ++i) s.callees.push_back(callee());
    s.form = Below(2);
    MaybeAfter(*here, &s);
    for (size_t i = 0; i < kResults; ++i) {
      s.results.push_back(NewVariable(visible));
      here->push_back(s.results.back());
    }
    block->push_back(std::move(s));
    return true;
  }

  void MakeFunction() {
    Function f;
    f.name = NewName("function");
    is_pure_ = f.is_pure = Chance(0.2);
    f.no_inline = Chance(0.25);
    std::vector<int> visible, here;
    for (size_t i = 0; i < kArguments; ++i) f.arguments.push_back(NewVariable(&visible));
    int budget = 3 + Below(8);
    Fill(&f.body, &visible, &here, visible.size(), 1, &budget);
    for (size_t i = 0; i < kResults; ++i) f.results.push_back(OneOf(visible));
    is_pure_ = false;
    program_.functions.push_back(std::move(f));
  }

  // The variables from `begin` on are set in the block. Where all are needed: the last one, which
  // needs them.
  int Fill(std::vector<Statement>* block, std::vector<int>* visible, std::vector<int>* here,
           size_t begin, int depth, int* budget) {
    // With functions: longer, and more of them in it.
    const int more = options_.max_functions > 0 ? 3 : 0;
    for (int n = 1 + more + Below(depth == 0 ? 8 : 4 + more); n > 0 && *budget > 0; --n) {
      --*budget;
      if (options_.max_functions > 0 && Chance(0.35) && Call(block, visible, here)) continue;
      const int what = Below(10);
      if (what < 2 && depth < options_.max_depth) {
        block->push_back(If(visible, depth, budget));
      } else if (what < 5 && depth < options_.max_depth && !is_pure_) {
        block->push_back(While(visible, depth, budget));
      } else if (what < 6) {
        block->push_back(Constant(visible, here));
      } else {
        block->push_back(Op(visible, here));
      }
    }
    if (!all_needed_) return -1;
    Statement last;
    for (size_t i = begin; i < visible->size(); ++i) {
      if (read_.insert((*visible)[i]).second) last.inputs.push_back((*visible)[i]);
    }
    if (last.inputs.empty()) return -1;
    last.name = NewName("last");
    last.result = NewVariable(visible);
    read_.insert(last.result);
    block->push_back(last);
    return last.result;
  }

  std::mt19937_64 random_;
  const ProgramOptions& options_;
  Program program_;
  bool is_pure_ = false;     // the function that is being made
  bool all_needed_ = false;  // of the block that is being made
  std::set<int> read_;
  int next_variable_ = 0;
  int next_name_ = 0;
};

// --- Running one ---------------------------------------------------------------------------------

// A value; nothing when it hangs on an op that failed.
using Value = std::optional<uint32_t>;

class Runner {
 public:
  Runner(const Program& program, int64_t max_statements)
      : program_(program), left_(max_statements) {}

  Outcome Run() {
    RunBlock(program_.statements);
    for (const int v : program_.outputs) outcome_.outputs.push_back(values_[v].value_or(0));
    return outcome_;
  }

 private:
  void RunBlock(const std::vector<Statement>& block) {
    for (const Statement& s : block) {
      if (--left_ < 0) outcome_.is_too_long = true;
      if (outcome_.is_too_long) return;
      switch (s.what) {
        case Statement::What::kOp:
          RunOp(s);
          break;
        case Statement::What::kIf:
          RunIf(s);
          break;
        case Statement::What::kWhile:
          RunWhile(s);
          break;
        default:
          RunCalls(s);
      }
    }
  }

  // What the function gives; nothing, when anything in it has failed or lacks an input.
  std::optional<std::vector<uint32_t>> Call(int function, const std::vector<uint32_t>& arguments) {
    const Function& f = program_.functions[static_cast<size_t>(function)];
    for (size_t i = 0; i < arguments.size(); ++i) values_[f.arguments[i]] = arguments[i];
    const int64_t failed_before = failed_;
    RunBlock(f.body);
    if (failed_ > failed_before) return std::nullopt;
    std::vector<uint32_t> results;
    for (const int v : f.results) results.push_back(values_[v].value_or(0));
    return results;
  }

  void RunCalls(const Statement& s) {
    for (const int v : s.results) values_[v].reset();
    if (s.after >= 0 && !values_[s.after]) return;
    std::vector<uint32_t> inputs;
    for (const int v : s.inputs) {
      if (!values_[v]) return;
      inputs.push_back(*values_[v]);
    }
    std::optional<std::vector<uint32_t>> results;
    switch (s.what) {
      case Statement::What::kCall:
        results = Call(s.callees[0], inputs);
        break;
      case Statement::What::kCallIf:
        results =
            Call(s.callees[inputs[0] < inputs[1] ? 0 : 1], {inputs.begin() + 2, inputs.end()});
        break;
      case Statement::What::kCallCase: {
        const size_t index = std::min<size_t>(inputs[0] % kMaxTrips, s.callees.size() - 1);
        results = Call(s.callees[index], {inputs.begin() + 1, inputs.end()});
        break;
      }
      default:  // a loop
        results.emplace(inputs.begin() + 1, inputs.end());
        for (uint32_t count = 0; results && count < inputs[0] % kMaxTrips; ++count) {
          results->insert(results->begin(), count);
          results = Call(s.callees[0], *results);
        }
    }
    if (!results) return;
    for (size_t i = 0; i < s.results.size(); ++i) values_[s.results[i]] = (*results)[i];
  }

  void RunOp(const Statement& s) {
    values_[s.result].reset();
    std::vector<uint32_t> inputs;
    for (const int v : s.inputs) {
      if (!values_[v]) return;
      inputs.push_back(*values_[v]);
    }
    if (s.after >= 0 && !values_[s.after]) return;
    if (s.kind == Kind::kLiteral) {
      values_[s.result] = Literal(s.name);
      return;
    }
    if (s.kind == Kind::kPure) {
      values_[s.result] =
          TakesLarger(s.name) ? std::max(inputs[0], inputs[1]) : std::min(inputs[0], inputs[1]);
      return;
    }
    const uint32_t value = Mix(s.name, inputs);
    ++outcome_.runs[s.name];
    if (s.fails_in > 0 && value % s.fails_in == 0) {
      outcome_.failures.insert(s.name);
      ++failed_;
      return;
    }
    values_[s.result] = value;
  }

  void RunIf(const Statement& s) {
    for (const int v : s.results) values_[v].reset();
    const Value a = values_[s.inputs[0]], b = values_[s.inputs[1]];
    if (!a || !b) return;
    RunBlock(*a < *b ? s.body : s.otherwise);
    const std::vector<int>& from = *a < *b ? s.body_results : s.otherwise_results;
    for (size_t i = 0; i < from.size(); ++i) values_[s.results[i]] = values_[from[i]];
  }

  void RunWhile(const Statement& s) {
    for (const int v : s.results) values_[v].reset();
    const Value limit = values_[s.inputs[0]];
    if (!limit) return;
    std::vector<Value> now;
    for (const int v : s.initial) now.push_back(values_[v]);
    for (uint32_t count = 0; count < *limit % kMaxTrips; ++count) {
      values_[s.count] = count;
      for (size_t i = 0; i < now.size(); ++i) values_[s.inside[i]] = now[i];
      RunBlock(s.body);
      for (size_t i = 0; i < now.size(); ++i) now[i] = values_[s.next[i]];
    }
    for (size_t i = 0; i < now.size(); ++i) values_[s.results[i]] = now[i];
  }

  const Program& program_;
  int64_t left_;
  int64_t failed_ = 0;  // ops, each time
  std::map<int, Value> values_;
  Outcome outcome_;
};

void Write(const std::vector<Statement>& block, int indent, std::ostream& out) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  const auto list = [&](const std::vector<int>& variables) {
    for (const int v : variables) out << " v" << v;
  };
  for (const Statement& s : block) {
    out << blanks << s.name << ":";
    list(s.inputs);
    if (s.what == Statement::What::kOp) {
      out << " -> v" << s.result << " kind " << static_cast<int>(s.kind);
      if (s.after >= 0) out << " after v" << s.after;
      if (s.fails_in > 0) out << " fails in " << s.fails_in;
      out << "\n";
      continue;
    }
    out << " ->";
    list(s.results);
    if (!s.callees.empty()) {
      out << " by";
      for (const int f : s.callees) out << " " << f;
      if (s.after >= 0) out << " after v" << s.after;
    }
    if (s.what == Statement::What::kWhile) {
      out << " count v" << s.count << " initial";
      list(s.initial);
      out << " inside";
      list(s.inside);
      out << " next";
      list(s.next);
      out << " at once " << s.parallel_iterations;
    }
    out << "\n";
    Write(s.body, indent + 2, out);
    if (s.what != Statement::What::kIf) continue;
    out << blanks << "  gives";
    list(s.body_results);
    out << "\n" << blanks << "otherwise\n";
    Write(s.otherwise, indent + 2, out);
    out << blanks << "  gives";
    list(s.otherwise_results);
    out << "\n";
  }
}

}  // namespace

uint32_t Mix(const std::string& name, const std::vector<uint32_t>& inputs) {
  uint64_t hash = 1469598103934665603u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  for (const uint32_t input : inputs) hash = (hash ^ input) * 6364136223846793005u + (hash >> 29);
  return static_cast<uint32_t>((hash >> 17) % kModulus);
}

bool TakesLarger(const std::string& name) { return Mix(name, {}) % 2 == 0; }

uint32_t Literal(const std::string& name) { return Mix(name, {}) % 8; }

Program RandomProgram(uint64_t seed, const ProgramOptions& options) {
  return Maker(seed, options).Make();
}

Outcome RunProgram(const Program& program, int64_t max_statements) {
  return Runner(program, max_statements).Run();
}

std::string ToText(const Program& program) {
  std::ostringstream out;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    out << "function " << f << " '" << function.name << "'"
        << (function.no_inline ? ", stays a call" : "") << ":";
    for (const int v : function.arguments) out << " v" << v;
    out << " ->";
    for (const int v : function.results) out << " v" << v;
    out << "\n";
    Write(function.body, 2, out);
  }
  Write(program.statements, 0, out);
  out << "outputs";
  for (const int v : program.outputs) out << " v" << v;
  out << "\n";
  return out.str();
}

}  // namespace millrace::loops
