// Does not include what it uses: the header check must reject it.
#pragma once

inline std::string_view Name() { return "x"; }
