// A model with one input, float32 [N, ...], and one output, float32 [N, ...], run on batches.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "queue.h"

class Model {
 public:
  /// Throws Ort::Exception or std::runtime_error if the model cannot be served.
  Model(const char* path, const char* ops) : session_(environment_, path, with(ops)) {
    shape_ = session_.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
    bool fits = !shape_.empty() && shape_[0] == -1;
    for (std::size_t i = 1; i < shape_.size(); ++i) {
      fits = fits && shape_[i] > 0;
      width_ *= shape_[i];
    }
    if (!fits) throw std::runtime_error("the first size of the input must be free, and no other");
  }

  /// The number of elements of a row of the input.
  std::size_t width() const { return static_cast<std::size_t>(width_); }

  /// Answers the requests, each of which has a row of width() elements. Throws Ort::Exception.
  void run(std::vector<Request>& batch) {
    Row x;
    for (const Request& each : batch) x.insert(x.end(), each.row.begin(), each.row.end());
    shape_[0] = static_cast<std::int64_t>(batch.size());
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const auto input =
        Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), shape_.data(), shape_.size());
    const char* const inputs[] = {input_name_.get()};
    const char* const outputs[] = {output_name_.get()};
    const auto y = session_.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 1);
    const auto count = y[0].GetTensorTypeAndShapeInfo().GetElementCount() / batch.size();
    const float* row = y[0].GetTensorData<float>();
    for (Request& each : batch) {
      each.answer.set_value(Row(row, row + count));
      row += count;
    }
  }

 private:
  static Ort::SessionOptions with(const char* ops) {
    Ort::SessionOptions options;
    options.RegisterCustomOpsLibrary(ops);
    return options;
  }

  Ort::Env environment_;
  Ort::Session session_;
  Ort::AllocatorWithDefaultOptions allocator_;
  Ort::AllocatedStringPtr input_name_ = session_.GetInputNameAllocated(0, allocator_);
  Ort::AllocatedStringPtr output_name_ = session_.GetOutputNameAllocated(0, allocator_);
  std::vector<std::int64_t> shape_;
  std::int64_t width_ = 1;
};
