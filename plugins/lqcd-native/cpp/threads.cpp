#include "threads.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lqcd_native {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kSpins = 4000;  // about 50 microseconds: the next operator of a solver comes sooner than a sleeper wakes

class Pool {
 public:
  void run(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) {  // another Python thread has the workers
      for (int64_t k = 0; k < tasks; ++k) body(context, k);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (workers_ < threads - 1) {
        std::thread(&Pool::work, this, workers_).detach();
        ++workers_;
      }
      body_ = body, context_ = context, tasks_ = tasks, helpers_ = threads - 1;
      next_.store(0, std::memory_order_relaxed);
      open_ = true;
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take(body, context, tasks);
    // Close the job: a worker that has not come by now does not come any more, so nobody waits for one that sleeps.
    std::unique_lock<std::mutex> lock(mutex_);
    open_ = false;
    for (int spin = 0; active_ != 0 && spin < kSpins; ++spin) {
      lock.unlock();
      relax();
      lock.lock();
    }
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  void take(void (*body)(void*, int64_t), void* context, int64_t tasks) {
    for (int64_t k; (k = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(context, k);
  }

  void work(int index) {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && job_.load(std::memory_order_acquire) == seen; ++spin) relax();
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen; });
      seen = job_.load(std::memory_order_relaxed);
      if (!open_ || index >= helpers_) continue;
      ++active_;
      auto body = body_;
      auto context = context_;
      const int64_t tasks = tasks_;
      lock.unlock();
      take(body, context, tasks);
      lock.lock();
      if (--active_ == 0) done_.notify_all();
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> job_{0};
  std::atomic<int64_t> next_{0};
  void (*body_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  int workers_ = 0, helpers_ = 0, active_ = 0;
  bool open_ = false;
};

std::atomic<Pool*> pool{nullptr};

Pool* make_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(new Pool); });  // its threads are gone
  (void)registered;
  Pool* fresh = new Pool;  // never destroyed: sleeping workers may outlive main
  Pool* expected = nullptr;
  if (pool.compare_exchange_strong(expected, fresh)) return fresh;
  delete fresh;
  return expected;
}

}  // namespace

void run_tasks(int threads, int64_t tasks, void (*body)(void*, int64_t), void* context) {
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads <= 1) {
    for (int64_t k = 0; k < tasks; ++k) body(context, k);
    return;
  }
  Pool* p = pool.load();
  (p ? p : make_pool())->run(threads, tasks, body, context);
}

}  // namespace lqcd_native
