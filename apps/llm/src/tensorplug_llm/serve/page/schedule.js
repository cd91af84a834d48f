// Shows the page of a schedule, which may need the key that the chat keeps.
import { headers, problem } from "./server.js";

const model = new URLSearchParams(location.search).get("model");
const query = model ? `?model=${encodeURIComponent(model)}` : "";
const response = await fetch(`../schedule${query}`, { headers: headers() });
if (response.ok) {
  const page = await response.text();
  document.open();
  document.write(page);
  document.close();
} else {
  document.getElementById("state").textContent = await problem(response);
}
