// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_LOOPS_PROGRAM_H_
#define MILLRACE_TESTS_LOOPS_PROGRAM_H_

// Program: a random program with branches, loops and functions, and what it must do, found by
// running it statement by statement. It knows nothing of graphs: lower.h makes one of it.
//
// Variables are numbered, each is set by one statement, before those that read it. Values are
// integers below kModulus.
//
//   op      v = Mix(name, inputs)       may fail for some values
//           v = Pure(name, a, b), Literal(name)   what rewrites may compute before, or merge
//   if      if a < b { ... } else { ... }     results: one variable of each side
//   while   for (count = 0; count < limit % 5; ++count) { ... }     with variables that go round
//   call    results = f(inputs); all inputs are needed, and all of f ends before any result is
//           there
//           if, case, while and for whose sides and bodies are functions
//
// Thread-safety: pure functions. Failure: none.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace millrace::loops {

inline constexpr uint32_t kModulus = 65'521;  // floats hold these exactly
inline constexpr uint32_t kMaxTrips = 5;

// What an op computes.
uint32_t Mix(const std::string& name, const std::vector<uint32_t>& inputs);
// The larger or the smaller one.
bool TakesLarger(const std::string& name);
// One of few.
uint32_t Literal(const std::string& name);

enum class Kind {
  kPlain,
  kConstant,     // no inputs
  kAnswersNow,   // asynchronous
  kAnswersLate,  // ... from another thread
  kPure,         // of two inputs
  kLiteral,      // no inputs
};

inline constexpr size_t kArguments = 3, kResults = 2;  // of all functions

struct Statement {
  enum class What {
    kOp,
    kIf,
    kWhile,
    // Of functions, from here on.
    kCall,       // callees[0](inputs)
    kCallIf,     // callees[inputs[0] < inputs[1] ? 0 : 1](the other inputs)
    kCallCase,   // callees[inputs[0] % kMaxTrips](the other inputs); the last one when out of range
    kCallWhile,  // x = the other inputs; inputs[0] % kMaxTrips times: x = callees[0](count, x)
    kCallFor,    // the same
  } what = What::kOp;
  std::string name;

  // An op or a call: also runs after the op that sets `after`, if that is not negative.
  Kind kind = Kind::kPlain;
  std::vector<int> inputs;
  int result = -1;
  int after = -1;
  std::vector<int> callees;  // functions
  int form = 0;              // one of few ways to say the same
  uint32_t fails_in = 0;     // n > 0: one value in n makes it fail

  // An if: inputs are a and b. A while: input 0 gives the limit.
  std::vector<Statement> body, otherwise;
  // An if: what each side gives for each of `results`.
  std::vector<int> body_results, otherwise_results;
  // A while: initial values, the variables inside of the loop, their next values.
  std::vector<int> initial, inside, next;
  int count = -1;  // the counter inside of the loop
  int parallel_iterations = 1;
  std::vector<int> results;
};

struct Function {
  std::string name;
  std::vector<int> arguments;  // variables; no others are seen from outside
  std::vector<Statement> body;
  std::vector<int> results;
  bool is_pure = false;    // of ops that rewrites may compute before, and of ifs
  bool no_inline = false;  // calls of it stay calls
};

struct Program {
  std::vector<Function> functions;  // each calls only those before it
  std::vector<Statement> statements;
  std::vector<int> outputs;
};

struct ProgramOptions {
  int size = 12;              // statements, about
  int max_depth = 3;          // of branches and loops
  double failure_chance = 0;  // of a statement that may fail
  int max_functions = 0;
  // Outside of functions no variable is set in vain: the outputs need all statements.
  bool all_needed = false;
};
Program RandomProgram(uint64_t seed, const ProgramOptions& options);

// What running a program does.
struct Outcome {
  std::map<std::string, int> runs;  // of ops that run, by name
  std::vector<uint32_t> outputs;    // of Program::outputs
  // Ops that fail as far as they are reached. When there are any, one of them is the error, and
  // `runs` and `outputs` mean nothing.
  std::set<std::string> failures;
  bool is_too_long = false;  // more than `max_statements` run; the others mean nothing then
};
Outcome RunProgram(const Program& program, int64_t max_statements = int64_t{1} << 40);

std::string ToText(const Program& program);

}  // namespace millrace::loops

#endif  // MILLRACE_TESTS_LOOPS_PROGRAM_H_
