// Requests that wait for the model.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <future>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

using Row = std::vector<float>;

struct Request {
  Row row;
  std::promise<Row> answer;
};

class Queue {
 public:
  std::future<Row> push(Row row) {
    const std::lock_guard lock(mutex_);
    Request& request = waiting_.emplace_back(std::move(row), std::promise<Row>());
    filled_.notify_one();
    return request.answer.get_future();
  }

  /// Waits for a request, and takes those that are there.
  std::vector<Request> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !waiting_.empty(); });
    const auto end = waiting_.begin() + std::min<std::ptrdiff_t>(std::ssize(waiting_), most);
    std::vector<Request> batch(std::move_iterator(waiting_.begin()), std::move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    return batch;
  }

 private:
  static constexpr std::ptrdiff_t most = 64;  // rows of a batch
  std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Request> waiting_;
};
