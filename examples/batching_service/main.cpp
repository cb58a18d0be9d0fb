// Serves a model at a socket:
//
//   batching_service mlp.onnx libcudarelu_ops.so mlp.socket
//
// A client sends a row of the input as float32, receives a row of the output, and goes on. Rows of
// several clients that arrive while the model runs are its next batch. Only the user of the process
// can connect.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "model.h"

int listen_at(const char* path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (std::strlen(path) >= sizeof address.sun_path) {
    throw std::system_error(ENAMETOOLONG, std::generic_category(), path);
  }
  std::strcpy(address.sun_path, path);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  unlink(path);
  umask(0077);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, SOMAXCONN) != 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  return listener;
}

void serve(int client, std::size_t width, Queue& queue) try {
  Row x(width);
  const auto bytes = static_cast<ssize_t>(width * sizeof(float));
  while (recv(client, x.data(), bytes, MSG_WAITALL) == bytes) {
    const Row y = queue.push(x).get();
    if (send(client, y.data(), y.size() * sizeof(float), MSG_NOSIGNAL) < 0) break;
  }
  close(client);
} catch (const std::exception& error) {  // of the model: the client sees the end of its connection
  std::fprintf(stderr, "error: %s\n", error.what());
  close(client);
}

void run(Model& model, Queue& queue) {
  for (;;) {
    std::vector<Request> batch = queue.pop();
    try {
      model.run(batch);
      std::printf("a batch of %zu\n", batch.size());
    } catch (const std::exception&) {
      for (Request& each : batch) each.answer.set_exception(std::current_exception());
    }
  }
}

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: batching_service MODEL LIBRARY SOCKET");
  static Model model(argv[1], argv[2]);  // static, since threads use it until the process ends
  static Queue queue;
  const int listener = listen_at(argv[3]);
  std::thread(run, std::ref(model), std::ref(queue)).detach();
  setlinebuf(stdout);
  std::puts("ready");
  for (int client; (client = accept(listener, nullptr, nullptr)) >= 0;) {
    std::thread(serve, client, model.width(), std::ref(queue)).detach();
  }
  throw std::system_error(errno, std::generic_category(), "accept");
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  std::_Exit(1);  // threads may still run
}
