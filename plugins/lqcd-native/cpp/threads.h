// Threads of this process that run tasks of one job at a time.
#pragma once

#include <cstdint>

namespace lqcd_native {

// Run body(context, task) for task = 0 .. tasks - 1 on at most `threads` threads, the caller's among them.
//
// Which thread runs a task is not fixed, so a task must own what it writes; then the result does not depend on `threads`.
// A second Python thread that calls while a job runs works alone instead of waiting or starting more threads. In a forked
// child the pool starts anew.
void run_tasks(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context);

template <class F>
void parallel(int threads, int64_t tasks, F&& f) {
  run_tasks(threads, tasks, [](void* c, int64_t task) { (*static_cast<F*>(c))(task); }, &f);
}

}  // namespace lqcd_native
