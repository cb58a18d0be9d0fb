// How fast a model runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "durations.h"
#include "options.h"
#include "session.h"

namespace cudarelu::cli {

struct Measurement {
  std::map<std::string, std::int64_t> sizes;  // of the free dimensions
  std::int64_t runs = 0;
  double seconds = 0;                 // from the first start to the last end
  std::optional<std::int64_t> batch;  // in a sweep
  std::optional<Latency> total;       // of a run with its copies; none where nothing ran
  std::optional<Latency> to_device;   // with a binding on CUDA
  std::optional<Latency> run;         // the same
  std::optional<Latency> to_host;     // the same

  double runs_per_second() const { return static_cast<double>(runs) / seconds; }
  double items_per_second() const {
    return static_cast<double>(batch.value_or(1)) * runs_per_second();
  }
};

struct Measured {
  Measurement measurement;
  std::vector<Tensor> outputs;  // of the last run, where its buffers are fixed; else empty
};

/// Runs the model again and again, the first runs of each thread not counted. `outputs` are those
/// of a run with the same inputs. `graph` is the number of the CUDA graph, if one is wanted. Throws
/// an Error. An interrupt ends it early.
Measured measure(const Session& session, const std::vector<Tensor>& inputs,
                 const std::vector<Tensor>& outputs, const MeasureOptions& options, int device,
                 int graph);

}  // namespace cudarelu::cli
