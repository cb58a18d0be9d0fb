#include "report/measure.h"

#include <atomic>
#include <future>
#include <latch>
#include <limits>
#include <memory>
#include <system_error>

#include "error.h"
#include "interrupt.h"
#include "report/progress.h"
#include "session/invocation.h"

namespace cudarelu::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Phases {
  Durations total, to_device, run, to_host;

  void add(const Phases& others) {
    total.add(others.total);
    to_device.add(others.to_device);
    run.add(others.run);
    to_host.add(others.to_host);
  }
};

/// State that all threads share.
struct Shared {
  explicit Shared(std::ptrdiff_t threads) : ready(threads) {}

  std::latch ready;
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> runs = 0;  // for the progress display; updated every 1,024 runs
};

struct ThreadResult {
  Phases phases;
  Clock::time_point begin, end;
  bool arrived = false;  // at the latch where all threads start to measure
  std::vector<Tensor> outputs;
};

/// Calls `step` repeatedly. It takes the time of its begin and returns the time of its end, so that
/// each run reads the clock only once.
template <class Step>
void repeat(std::int64_t runs, Clock::time_point deadline, Shared& shared, ThreadResult& result,
            Step step) {
  constexpr std::int64_t shown_each = 1024;
  Clock::time_point now = Clock::now();
  result.begin = now;
  for (std::int64_t i = 0; i < runs; ++i) {
    const Clock::time_point end = step(now);
    result.phases.total.add(end - now);
    now = end;
    if (i % shown_each == shown_each - 1) shared.runs += shown_each;
    if (now >= deadline || interrupted() || shared.stop.load(std::memory_order_relaxed)) break;
  }
  result.end = now;
}

/// The work of one thread: warms up, waits for the other threads, and measures.
template <class Step>
void work(const MeasureOptions& options, std::int64_t runs, Shared& shared, ThreadResult& result,
          Step step) {
  for (std::int64_t i = 0; i < options.warmup && !interrupted(); ++i) step(Clock::now());
  result.phases = {};
  result.arrived = true;
  shared.ready.arrive_and_wait();
  const Clock::time_point deadline =
      options.seconds ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(*options.seconds))
                      : Clock::time_point::max();
  repeat(runs, deadline, shared, result, step);
}

std::optional<Latency> latency(const Durations& durations) {
  if (durations.count() == 0) return std::nullopt;
  return durations.latency();
}

}  // namespace

Measured measure(const Session& session, const std::vector<Tensor>& inputs,
                 const std::vector<Tensor>& outputs, const MeasureOptions& options, int device,
                 int graph) {
  const bool on_cuda = session.provider().name == "cuda";
  const bool bound = options.io_binding.value_or(on_cuda);
  std::optional<CudaDevice> cuda;
  if (bound && on_cuda) cuda.emplace(device);
  Shared shared(options.concurrency);

  const auto thread = [&](std::int64_t runs) {
    ThreadResult result;
    try {
      if (!bound) {
        PlainInvocation invocation(session, inputs);
        work(options, runs, shared, result, [&](Clock::time_point) {
          invocation.run();
          return Clock::now();
        });
        return result;
      }
      BoundInvocation invocation(session, inputs, outputs, cuda ? &*cuda : nullptr, device, graph);
      work(options, runs, shared, result, [&](Clock::time_point begin) {
        if (!cuda) {
          invocation.run();
          return Clock::now();
        }
        invocation.copy_in();
        const Clock::time_point copied = Clock::now();
        invocation.run();
        const Clock::time_point ran = Clock::now();
        invocation.copy_out();
        const Clock::time_point end = Clock::now();
        result.phases.to_device.add(copied - begin);
        result.phases.run.add(ran - copied);
        result.phases.to_host.add(end - ran);
        return end;
      });
      result.outputs = invocation.outputs();
    } catch (...) {
      shared.stop = true;
      if (!result.arrived) shared.ready.count_down();  // releases the threads that wait
      throw;
    }
    return result;
  };

  std::vector<std::future<ThreadResult>> threads;
  const std::int64_t all = options.iterations.value_or(std::numeric_limits<std::int64_t>::max());
  try {
    for (std::int64_t i = 0; i < options.concurrency; ++i) {
      const std::int64_t share =
          all / options.concurrency + (i < all % options.concurrency ? 1 : 0);
      threads.push_back(std::async(std::launch::async, thread, share));
    }
  } catch (const std::system_error&) {
    shared.stop = true;
    shared.ready.count_down(options.concurrency - static_cast<std::int64_t>(threads.size()));
    throw Error("--concurrency " + std::to_string(options.concurrency) +
                ": the system allows only " + std::to_string(threads.size()) + " threads");
  }
  Progress progress;
  for (auto& each : threads) {
    while (each.wait_for(Progress::interval) != std::future_status::ready) {
      progress.show(std::to_string(shared.runs) + " runs measured");
    }
  }
  progress.clear();

  Measured measured;
  auto phases = std::make_unique<Phases>();
  Clock::time_point begin = Clock::time_point::max();
  Clock::time_point end = Clock::time_point::min();
  for (auto& each : threads) {
    ThreadResult result = each.get();
    phases->add(result.phases);
    begin = std::min(begin, result.begin);
    end = std::max(end, result.end);
    measured.outputs = std::move(result.outputs);
  }
  Measurement& measurement = measured.measurement;
  measurement.runs = static_cast<std::int64_t>(phases->total.count());
  measurement.seconds = std::chrono::duration<double>(end - begin).count();
  measurement.total = latency(phases->total);
  measurement.to_device = latency(phases->to_device);
  measurement.run = latency(phases->run);
  measurement.to_host = latency(phases->to_host);
  return measured;
}

}  // namespace cudarelu::cli
