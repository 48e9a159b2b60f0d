// SPDX-License-Identifier: Apache-2.0
#include "tests/loops/program.h"

#include <algorithm>
#include <optional>
#include <random>
#include <sstream>

namespace millrace::loops {
namespace {

// --- Making one ----------------------------------------------------------------------------------

class Maker {
 public:
  Maker(uint64_t seed, const ProgramOptions& options) : random_(seed), options_(options) {}

  Program Make() {
    Program program;
    std::vector<int> visible, here;
    for (int i = 0; i < 3; ++i) program.statements.push_back(Constant(&visible, &here));
    int budget = options_.size;
    Fill(&program.statements, &visible, &here, 0, &budget);
    for (int i = 0; i < 3; ++i) program.outputs.push_back(OneOf(visible));
    return program;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(double p) { return static_cast<double>(random_() % 10'000) < p * 10'000; }
  int OneOf(const std::vector<int>& of) {
    return of[static_cast<size_t>(Below(static_cast<int>(of.size())))];
  }
  int NewVariable(std::vector<int>* visible) {
    visible->push_back(next_variable_);
    return next_variable_++;
  }
  std::string NewName(const char* what) { return what + std::to_string(next_name_++); }

  Statement Constant(std::vector<int>* visible, std::vector<int>* here) {
    Statement s;
    s.kind = Chance(0.5) ? Kind::kConstant : Kind::kLiteral;
    s.name = NewName(s.kind == Kind::kConstant ? "constant" : "literal");
    s.result = NewVariable(visible);
    here->push_back(s.result);
    return s;
  }

  Statement Op(std::vector<int>* visible, std::vector<int>* here) {
    Statement s;
    if (Chance(0.35)) {
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
    // `here`: set by ops of this block, which run exactly where this one runs.
    if (!here->empty() && Chance(0.2)) s.after = OneOf(*here);
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
    Fill(&s.body, &on_true, &here_true, depth + 1, budget);
    Fill(&s.otherwise, &on_false, &here_false, depth + 1, budget);
    for (int n = 1 + Below(3); n > 0; --n) {
      s.body_results.push_back(OneOf(on_true));
      s.otherwise_results.push_back(OneOf(on_false));
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
    Fill(&s.body, &inside, &here, depth + 1, budget);
    for (size_t i = 0; i < s.initial.size(); ++i) {
      s.next.push_back(OneOf(inside));
      s.results.push_back(NewVariable(visible));
    }
    return s;
  }

  void Fill(std::vector<Statement>* block, std::vector<int>* visible, std::vector<int>* here,
            int depth, int* budget) {
    for (int n = 1 + Below(depth == 0 ? 8 : 4); n > 0 && *budget > 0; --n) {
      --*budget;
      const int what = Below(10);
      if (what < 2 && depth < options_.max_depth) {
        block->push_back(If(visible, depth, budget));
      } else if (what < 5 && depth < options_.max_depth) {
        block->push_back(While(visible, depth, budget));
      } else if (what < 6) {
        block->push_back(Constant(visible, here));
      } else {
        block->push_back(Op(visible, here));
      }
    }
  }

  std::mt19937_64 random_;
  const ProgramOptions& options_;
  int next_variable_ = 0;
  int next_name_ = 0;
};

// --- Running one ---------------------------------------------------------------------------------

// A value; nothing when it hangs on an op that failed.
using Value = std::optional<uint32_t>;

class Runner {
 public:
  Outcome Run(const Program& program) {
    RunBlock(program.statements);
    for (const int v : program.outputs) outcome_.outputs.push_back(values_[v].value_or(0));
    return outcome_;
  }

 private:
  void RunBlock(const std::vector<Statement>& block) {
    for (const Statement& s : block) {
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
      }
    }
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

Outcome RunProgram(const Program& program) { return Runner().Run(program); }

std::string ToText(const Program& program) {
  std::ostringstream out;
  Write(program.statements, 0, out);
  out << "outputs";
  for (const int v : program.outputs) out << " v" << v;
  out << "\n";
  return out.str();
}

}  // namespace millrace::loops
