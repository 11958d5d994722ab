#include "base/status.h"

int main() { return 0; }
