// SPDX-License-Identifier: Apache-2.0
// The smallest program with the library: one step, and how long after the start of the process it
// was done. docs/performance.md has the figure.
#include <millrace/millrace.h>
#include <time.h>

#include <cstdio>

using namespace millrace;

// Of all threads since the process began: loading and relocating the libraries included.
double CpuMilliseconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

int main() {
  const double at_main = CpuMilliseconds();
  Scope root;
  const Output x = Const(root, 3.0f);
  const Output y = Mul(root, x, x);
  const auto session = NewSession();
  if (!session.ok()) return 1;
  const Status extended = (*session)->Extend(root);
  const auto out = (*session)->Run({}, {y});
  if (!extended.ok() || !out.ok() || (*out)[0].scalar<float>() != 9) return 1;
  std::printf("main after %.1f ms, first step after %.1f ms of CPU time\n", at_main,
              CpuMilliseconds());
  return 0;
}
