/* The live board: rows and lanes as they run, from the server's stream of events. */
"use strict";
(function (P) {
})(window.potentia);
