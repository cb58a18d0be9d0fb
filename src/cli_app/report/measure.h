// Measurement of the throughput and latency of a model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "options.h"
#include "report/durations.h"
#include "session/session.h"

namespace cudarelu::cli {

struct Measurement {
  std::map<std::string, std::int64_t> sizes;  // of the free dimensions
  std::int64_t runs = 0;
  double seconds = 0;                 // from the first start to the last end
  std::optional<std::int64_t> batch;  // the size in a sweep
  std::optional<Latency> total;       // of a run with its copies; empty if nothing ran
  std::optional<Latency> to_device;   // only with fixed buffers on CUDA
  std::optional<Latency> run;         // likewise
  std::optional<Latency> to_host;     // likewise

  double runs_per_second() const { return static_cast<double>(runs) / seconds; }
  double items_per_second() const {
    return static_cast<double>(batch.value_or(1)) * runs_per_second();
  }
};

struct Measured {
  Measurement measurement;
  std::vector<Tensor> outputs;  // of the last run if the buffers are fixed, else empty
};

/// Measures repeated runs of the model, after the warm-up runs of each thread. `outputs` comes from
/// a run with the same inputs. `graph` is the number of the CUDA graph to capture, or 0. An
/// interrupt ends the measurement early. Throws an Error.
Measured measure(const Session& session, const std::vector<Tensor>& inputs,
                 const std::vector<Tensor>& outputs, const MeasureOptions& options, int device,
                 int graph);

}  // namespace cudarelu::cli
